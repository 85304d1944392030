"""Google's API as Gemini's clients speak it.

Not here: OpenAI's and Anthropic's (the folder above).
"""

"""New weights for running vLLM servers: pause, update, version, resume, and a probe of each.

Each way is imported by its module: `TransferSync` needs vLLM, `LoraSync` peft.
"""

"""New weights for running vLLM servers: pause, update, version, resume, and a probe of each.

Each way is imported by its module: `NcclSync` needs vLLM, `LoraSync` peft.
"""

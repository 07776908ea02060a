"""How is a model asked? One protocol: a server with OpenAI's API, and in tests a scripted model.

*Invariant:* an engine raises only `LlmRefusal` (retry later) and `PromptRefused` (do not retry).
*Invariant:* a cancelled request leaves nothing running at the server. Absent on purpose: retries
and pauses; `generator.plan` decides them.
"""

"""The gateway: OpenAI's API and MCP, for applications that have no Kafka client."""

"""The agent gateway: an HTTP service that runs durable LLM agent turns for many tenants."""

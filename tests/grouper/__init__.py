"""Windows, policies, orders, tenants, and what leaves as groups."""

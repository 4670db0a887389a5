"""Tools that come with the gateway, one module each."""

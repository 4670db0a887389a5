"""Postgres: the engine, the tables, one repository per aggregate. The only place with SQL."""

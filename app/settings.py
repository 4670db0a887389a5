"""Settings: environment variables, read once by ``main`` and passed on as values."""

from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.domain.outbound import OutboundPolicy
from app.domain.tools import MAX_TOOL_POOL

MIN_ADMIN_KEY_CHARACTERS = 8
"""The same as the API's own rule, which closes /admin to a shorter key: whoever sets one should learn of it at the start."""

MIN_SECRET_KEY_CHARACTERS = 8
"""Of each of the secrets that ``GATEWAY_SECRET_KEY`` may hold: a stolen database must not make the secret worth guessing."""


class Settings(BaseSettings):
    """Every setting, with the prefix ``GATEWAY_`` (and ``DATABASE_URL``). Durations in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_", env_ignore_empty=True, frozen=True, extra="ignore", populate_by_name=True)

    database_url: SecretStr | None = Field(
        None, validation_alias="DATABASE_URL", description="Postgres 15 or newer; unset: an embedded one"
    )
    direct_database_url: SecretStr | None = Field(None, description="bypasses a pooler for LISTEN and migrations; unset: DATABASE_URL")
    data_dir: Path = Field(Path(".data"), description="where the embedded Postgres keeps its data")
    db_pool_size: int = Field(20, ge=1, description="database connections of one process")
    admin_key: SecretStr | None = Field(None, description="opens /admin and /metrics; unset: both stay closed")
    secret_key: SecretStr | None = Field(
        None, description="encrypts literal credentials of providers and tools; unset: only env: references are taken"
    )
    bootstrap_file: Path | None = Field(None, description="TOML with tenants, applied at start")
    tool_modules: str = Field("", description="comma-separated Python modules with the operator's own tools")
    tool_pool_size: int = Field(
        128, ge=1, le=MAX_TOOL_POOL, description="tool calls at once in one process, and threads for those that block"
    )
    tool_calls_per_turn: int = Field(256, ge=1, description="tool calls at once of one turn")
    tool_timeout_s: float = Field(120.0, gt=0, description="longest time of one tool call, where the tool has none of its own")
    outbound_allow: str = Field(
        "", description="comma-separated networks and host names that tools may call although they are not public, such as 10.1.0.0/16"
    )
    mcp_servers_file: Path | None = Field(None, description="TOML with MCP servers of your own, programs that every tenant may use")
    log_level: str = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")
    max_running_turns: int = Field(2_000, ge=1, description="turns that one process runs at once")
    max_body_bytes: int = Field(10_485_760, ge=1_024, description="largest request body")
    longest_wait_s: float = Field(65.0, ge=0, description="what a model call waits at most for limits, where no other route can answer")
    heartbeat_s: float = Field(10.0, gt=0, description="comment on a quiet stream")
    drain_grace_s: float = Field(10.0, gt=0, description="from SIGTERM to exit")
    lease_ttl_s: float = Field(20.0, gt=0, description="a replica silent for so long has lost its turns")
    lease_beat_s: float = Field(5.0, gt=0, description="between heartbeats of a replica")
    poll_s: float = Field(0.4, gt=0, description="between looks for interrupts and queued turns")
    action_timeout_s: float = Field(24 * 3600.0, gt=0, description="how long a turn waits for client tools, answers and approvals")
    delta_retention_s: float = Field(6 * 3600.0, gt=0, description="how long deltas of an ended turn can be replayed")
    stateless_retention_s: float = Field(
        30 * 86_400.0, gt=0, description="how long turns of calls without a session are kept after their end"
    )
    archive_retention_s: float | None = Field(
        None, gt=0, description="how old messages that a summary stands for get before they are deleted; unset: they stay"
    )

    @field_validator("admin_key", "secret_key", mode="after")
    @classmethod
    def _blank_is_unset(cls, key: SecretStr | None) -> SecretStr | None:
        return key if key is not None and key.get_secret_value().strip() else None

    @field_validator("outbound_allow", mode="after")
    @classmethod
    def _check_outbound_allow(cls, allow: str) -> str:
        OutboundPolicy(allow)
        return allow

    @field_validator("admin_key", mode="after")
    @classmethod
    def _check_admin_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and len(key.get_secret_value().strip()) < MIN_ADMIN_KEY_CHARACTERS:
            msg = f"must have at least {MIN_ADMIN_KEY_CHARACTERS} characters"
            raise ValueError(msg)
        return key

    @field_validator("secret_key", mode="after")
    @classmethod
    def _check_secret_key(cls, key: SecretStr | None) -> SecretStr | None:
        secrets = [] if key is None else [part.strip() for part in key.get_secret_value().split(",")]
        if any(0 < len(secret) < MIN_SECRET_KEY_CHARACTERS for secret in secrets):
            msg = f"each of its comma-separated secrets must have at least {MIN_SECRET_KEY_CHARACTERS} characters"
            raise ValueError(msg)
        return key

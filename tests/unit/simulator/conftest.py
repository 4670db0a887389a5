"""A running simulator, a client of it, and a certificate for TLS."""

import ipaddress
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from app.simulator import Simulator
from tests.unit.simulator.client import ChatClient


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    running = Simulator()
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as opened:
        yield opened


@pytest.fixture
async def client(simulator: Simulator, session: aiohttp.ClientSession) -> ChatClient:
    return ChatClient(session, simulator.base_url)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and self-signed certificate of 127.0.0.1 in one PEM file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "simulator")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key(), serial_number=1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path_factory.mktemp("tls") / "simulator.pem"
    path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return path

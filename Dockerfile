# The image of a worker, of the API and of the codec server. `docker build --tag holdfast:0.1.0 .`, or let docker compose build it.
FROM python:3.11.14-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/holdfast
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY holdfast holdfast
RUN /opt/holdfast/bin/pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt '.[s3]'

FROM python:3.11.14-slim-bookworm
COPY --from=build /opt/holdfast /opt/holdfast
# The directory belongs to the user before it becomes a volume: a new volume takes its owner from here.
RUN useradd --system --uid 10001 --home-dir /var/lib/holdfast --create-home holdfast
ENV PATH=/opt/holdfast/bin:$PATH \
    HOLDFAST_HOME=/var/lib/holdfast \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/holdfast
USER 10001
# A worker listens on nothing, so Temporal is asked whether this container polls. The server forgets a poller after five
# minutes. A worker on another task queue needs a check of its own.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
    CMD ["sh", "-c", "temporal task-queue describe --task-queue holdfast --output json | grep -q @$(hostname)"]
ENTRYPOINT ["holdfast"]
CMD ["worker"]

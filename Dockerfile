# A server with redis-rl loaded. From the top of the repository:
#
#   docker build -t redis-rl .
#   docker build -t redis-rl:valkey --build-arg KIND=valkey --build-arg SERVER_IMAGE=valkey/valkey:8 .
#   docker run -p 127.0.0.1:6379:6379 -v limits:/data redis-rl --maxmemory 256mb
#
# The module is compiled in the server's own image, so it finds the libc that it was linked with. That needs an image of
# Debian's or Ubuntu's kind, as the official ones without a suffix are, with a folder /data of its user's; not -alpine.
# `--target prebuilt` takes target/release/libredis_rl.so from outside instead, and compiles nothing.
ARG SERVER_IMAGE=redis:8
# Only its toolchain is taken.
ARG RUST_IMAGE=rust:1-slim-bookworm

FROM ${SERVER_IMAGE} AS server
# The images name their programs and their user after it: redis or valkey.
ARG KIND=redis
ENV RL_KIND=${KIND}
COPY docker/server.conf /etc/redis-rl.conf
USER ${KIND}
WORKDIR /data
VOLUME /data
EXPOSE 6379
# One that asks for a password is well, too.
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 \
  CMD "$RL_KIND-cli" -p 6379 ping | grep -qE 'PONG|NOAUTH'
# Arguments of `docker run` are the server's.
ENTRYPOINT ["sh", "-c", "exec \"$RL_KIND-server\" /etc/redis-rl.conf \"$@\"", "redis-rl"]
CMD []

FROM server AS prebuilt
COPY target/release/libredis_rl.so /usr/local/lib/libredis_rl.so

FROM ${RUST_IMAGE} AS rust

FROM ${SERVER_IMAGE} AS build
USER root
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev clang libclang-dev ca-certificates \
  && rm -rf /var/lib/apt/lists/*
COPY --from=rust /usr/local/rustup /usr/local/rustup
COPY --from=rust /usr/local/cargo /usr/local/cargo
ENV RUSTUP_HOME=/usr/local/rustup CARGO_HOME=/usr/local/cargo PATH=/usr/local/cargo/bin:$PATH
WORKDIR /src
COPY . .
RUN cargo build --release --locked --lib

FROM server
COPY --from=build /src/target/release/libredis_rl.so /usr/local/lib/libredis_rl.so

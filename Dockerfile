# An image from the wheel: CPU only, every package pinned by hash, no root.
#
#   docker build -t ogkd .
#   docker run --rm -v "$PWD":/work ogkd start my_images --yes
#   docker run --rm -it -p 127.0.0.1:7860:7860 -v "$PWD":/work ogkd app my-model --host 0.0.0.0
#
# The page needs a token, new at each start and printed, or that of the variable OGKD_TOKEN (-e OGKD_TOKEN).

FROM python:3.12-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM python:3.12-slim
# torch first, from its own index of CPU builds: the one on PyPI brings 5 GB of CUDA.
RUN pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
COPY requirements.lock /tmp/
RUN pip install --no-cache-dir --require-hashes --no-deps -r /tmp/requirements.lock
COPY --from=wheel /wheel /tmp/wheel
RUN pip install --no-cache-dir --no-deps /tmp/wheel/*.whl && rm -r /tmp/wheel /tmp/requirements.lock

RUN useradd --create-home ogkd && mkdir /work /cache && chown ogkd /work /cache
USER ogkd
ENV OGKD_CACHE=/cache OGKD_ACCESS_LOG=1
VOLUME /cache
WORKDIR /work
EXPOSE 7860
# Of `app` and `studio`; containers of other commands serve no page and are done when they end.
HEALTHCHECK --start-period=2m CMD ["python", "-c", "import http.client as h, sys; c = h.HTTPConnection('127.0.0.1', 7860, timeout=5); c.request('GET', '/health'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["ogkd"]

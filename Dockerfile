# The studio and its endpoints in a container; docs/guides/serve.md says how to run it.
FROM python:3.13-slim
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt '.[serve,data]' && rm -rf /build
RUN useradd --create-home studio && mkdir /project && chown studio /project
USER studio
WORKDIR /
VOLUME /project
EXPOSE 8477
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8477/health')"]
ENTRYPOINT ["dualmoco", "serve", "/project", "--host", "0.0.0.0", "--no-browser"]

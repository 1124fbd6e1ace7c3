# A volunteer's machine in a container: nothing of the host but the network and one folder is within its reach.
#
#     docker build --tag minga .
#     docker run --rm --interactive --tty --volume minga:/data minga join LINK
#
# With an NVIDIA GPU, and NVIDIA's container toolkit on the host:
#
#     docker build --tag minga --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 .
#     docker run --rm --gpus all --shm-size 8g --interactive --tty --volume minga:/data minga join LINK
FROM python:3.12-slim

# PyTorch's own index of wheels; /cpu leaves out the gigabytes that only a GPU needs.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "${TORCH_INDEX}" "torch>=2.4"

WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir ".[data]" && rm -r /source/*

# The key and the runs of this peer outlive the container if /data is a volume.
ENV XDG_DATA_HOME=/data
RUN useradd --create-home minga && install --directory --owner minga /data
USER minga
WORKDIR /home/minga
VOLUME /data

ENTRYPOINT ["minga"]
CMD ["--help"]

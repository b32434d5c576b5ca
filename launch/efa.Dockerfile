# SGLang, this package and the user space of EFA in one image, for the manifests in launch/*/efa.
#
#   docker build -f launch/efa.Dockerfile -t REGISTRY/sglang-pd-fabric:efa .
#
# at the root of this repository. Not built by us yet.
FROM lmsysorg/sglang:v0.5.23

# rdma-core and libfabric, in /opt/amazon/efa: the only libfabric of this image. The kernel module is the host's.
RUN curl -fsSL https://efa-installer.amazonaws.com/aws-efa-installer-latest.tar.gz | tar xz -C /tmp \
 && apt-get update \
 && cd /tmp/aws-efa-installer \
 && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify \
 && rm -rf /tmp/aws-efa-installer /var/lib/apt/lists/*

# The core is compiled against the headers of that libfabric. The extra `sglang` adds the router; SGLang is there.
COPY . /opt/sglang-pd-fabric
RUN CPATH=/opt/amazon/efa/include pip install '/opt/sglang-pd-fabric[sglang,cuda]'

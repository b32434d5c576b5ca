# SGLang, this package and the user space of ConnectX in one image, for the manifests in launch/*/connectx.
#
#   docker build -f launch/connectx.Dockerfile -t REGISTRY/sglang-pd-fabric:connectx .
#
# at the root of this repository. Not built by us yet.
FROM lmsysorg/sglang:v0.5.23

# What libfabric's verbs provider loads, and headers for the core. The libfabric that is used is newer: the wheel of
# the extra `libfabric` below.
RUN apt-get update \
 && apt-get install -y --no-install-recommends ibverbs-providers librdmacm1 libfabric-dev \
 && rm -rf /var/lib/apt/lists/*

# The extra `sglang` adds the router; SGLang is there.
COPY . /opt/sglang-pd-fabric
RUN pip install '/opt/sglang-pd-fabric[sglang,cuda,libfabric]'

"""Machines out of public documents; each says where its facts are from.

What the sources leave open (bridges on the way, buses of the second socket) continues their pattern. So a
tree here is right about who is below which switch, but it is not a recording.
"""

from dataclasses import replace

from .trees import Function, Machine

EFA = "0200 1d0f"
ENA = "0200 1d0f ec20"
A100, H100, H200, B200 = ("0302 10de 20b0", "0302 10de 2330", "0302 10de 2335", "0302 10de 2901")
CX7, CX7_IB, CX6_DX, CX_VF = ("0200 15b3 1021", "0207 15b3 1021", "0200 15b3 101d", "0200 15b3 101e")


def _gpu(path: str, ids: str, numa: int) -> Function:
    return Function(path, ids, numa, driver="nvidia")


def _efa(path: str, device: str, numa: int, gbps: int) -> Function:
    _, bus, slot = path.rpartition("/")[2].partition(".")[0].split(":")
    name = f"rdmap{int(bus, 16)}s{int(slot, 16)}"
    port = ("4: ACTIVE", f"{gbps} Gb/sec (4X)", "Unspecified")
    return Function(path, f"{EFA} {device}", numa, rdma=(name,), driver="efa", port=port)


def _ena(path: str, name: str, numa: int) -> Function:
    return Function(path, ENA, numa, netdevs=(name,), driver="ena")


def _mlx(path: str, number: int, numa: int, ids: str = CX7_IB, netdev: str = "") -> Function:
    ethernet = ids in (CX7, CX6_DX, CX_VF)
    return Function(
        path,
        ids,
        numa,
        rdma=(f"mlx5_{number}",),
        netdevs=(netdev or f"ib{number}",),
        driver="mlx5_core",
        port=("4: ACTIVE", "100 Gb/sec (2X HDR)", "Ethernet") if ethernet else Function("", "").port,
    )


# EC2's own display adapter and root complex, on every instance.
_EC2_BASE = (
    Function("pci0000:00/0000:00:00.0", "0600 8086 1237"),
    Function("pci0000:00/0000:00:03.0", "0300 1d0f 1111"),
)


def p4d() -> Machine:
    """p4d.24xlarge. aws-ofi-nccl topology/p4d-24xl-topo.xml: on each of the buses 10, 20, 90 and a0 two A100
    (1c, 1d) and one EFA (1b); CPUs 0-23,48-71 and 24-47,72-95. Assumed: the VM does not see the switch, so
    that each bus is a host bridge."""
    functions = list(_EC2_BASE)
    for bus, numa in (("10", 0), ("20", 0), ("90", 1), ("a0", 1)):
        root = f"pci0000:{bus}/0000:{bus}"
        functions += [_gpu(f"{root}:1c.0", A100, numa), _gpu(f"{root}:1d.0", A100, numa)]
        functions += [_efa(f"{root}:1b.0", "efa0", numa, 100)]
    functions += [_ena("pci0000:00/0000:00:05.0", "ens5", 0)]
    return Machine("p4d", tuple(functions), ("0-23,48-71", "24-47,72-95"), 48)


def _ec2_switches(
    roots: range, enas: range, efas: range, gpus: range, efa: str, gbps: int, gpu: str
) -> list[Function]:
    """EC2's virtual PCIe switches: a root bus, an upstream port, a downstream port for each device. Ranges
    are buses relative to the root's; the first half of the roots is on NUMA node 0."""
    functions = list(_EC2_BASE)
    for index, root in enumerate(roots):
        numa = int(index >= len(roots) // 2)
        upstream = f"pci0000:{root:02x}/0000:{root:02x}:00.0/0000:{root + 1:02x}:00.0"

        def below(offset: int, root: int = root, upstream: str = upstream) -> str:
            port = offset - 3
            return f"{upstream}/0000:{root + 2:02x}:{port // 8:02x}.{port % 8}/0000:{root + offset:02x}:00.0"

        functions += [_ena(below(offset), f"enp{root + offset}s0", numa) for offset in enas]
        functions += [_efa(below(offset), efa, numa, gbps) for offset in efas]
        functions += [_gpu(below(offset), gpu, numa) for offset in gpus]
    return functions


_EC2_CPUS = ("0-47,96-143", "48-95,144-191")


def p5() -> Machine:
    """p5.48xlarge. Addresses printed by abcdabcd987/libfabric-efa-demo (8_topo): GPU 53, EFA 4f-52; GPU 64,
    EFA 60-63; ... GPU ca, EFA c6-c9, four of eight on each socket; aws-ofi-nccl topology/p5.48xl-topo.xml
    confirms one GPU and four NICs below each switch."""
    roots = range(0x44, 0x44 + 8 * 0x11, 0x11)
    functions = _ec2_switches(roots, range(3, 4), range(11, 15), range(15, 16), "efa1", 100, H100)
    return Machine("p5", tuple(functions), _EC2_CPUS, 96)


def p5en() -> Machine:
    """p5en.48xlarge. aws-ofi-nccl tests/unit/fixtures/topology/p5en (hwloc): below each of four switches four
    ENA, four EFA (efa2, 55-58) and two H200 (59, 5a)."""
    roots = range(0x44, 0x44 + 4 * 0x19, 0x19)
    functions = _ec2_switches(roots, range(3, 7), range(17, 21), range(21, 23), "efa2", 200, H200)
    return Machine("p5en", tuple(functions), _EC2_CPUS, 96)


def p6_b200() -> Machine:
    """p6-b200.48xlarge. aws-ofi-nccl tests/unit/fixtures/topology/p6-b200 (hwloc): below each of four
    switches two ENA, two EFA (efa3, 4f-50) and two B200 (51, 52)."""
    roots = range(0x44, 0x44 + 4 * 0x11, 0x11)
    functions = _ec2_switches(roots, range(3, 5), range(11, 13), range(13, 15), "efa3", 400, B200)
    return Machine("p6-b200", tuple(functions), _EC2_CPUS, 96)


# DGX H100 User Guide, table "Network Modules": RDMA device and bus of each GPU's NIC.
_DGX = {
    "1b": (0, "18"),
    "43": (3, "40"),
    "52": (4, "4f"),
    "61": (5, "5e"),
    "9d": (6, "9a"),
    "c3": (9, "c0"),
    "d1": (10, "ce"),
    "df": (11, "dc"),
}
_SPR_CPUS = ("0-55,112-167", "56-111,168-223")  # nvidia-smi topo -m in NVIDIA/nccl#1264


def _dgx_switch(nic: str) -> str:
    root = int(nic, 16) - 3
    return f"pci0000:{root:02x}/0000:{root:02x}:01.0/0000:{root + 1:02x}:00.0/0000:{root + 2:02x}"


def _hgx_gpus() -> list[Function]:
    functions = []
    for index, (gpu, (number, nic)) in enumerate(_DGX.items()):
        switch = _dgx_switch(nic)
        functions += [_gpu(f"{switch}:02.0/0000:{gpu}:00.0", H100, index // 4)]
        functions += [_mlx(f"{switch}:00.0/0000:{nic}:00.0", number, index // 4)]
    return functions


def dgx_h100() -> Machine:
    """DGX H100: eight ConnectX-7 beside the GPUs, and two dual-port ConnectX-7 for storage (mlx5_1, 2, 7, 8)
    on root ports of their own. In the matrix of vllm-project/vllm#6746, of such a machine, they are NODE to
    all GPUs and PIX to each other. Buses of the GPUs, the storage NICs and the bridges are assumed."""
    storage = [
        _mlx(f"pci0000:{root}/0000:{root}:01.0/0000:{bus}:00.{function}", number, numa)
        for root, bus, numa, numbers in (("26", "29", 0, (1, 2)), ("a7", "aa", 1, (7, 8)))
        for function, number in enumerate(numbers)
    ]
    return Machine("dgx-h100", (*_hgx_gpus(), *storage), _SPR_CPUS, 112)


def hgx_h100_ethernet_front_end() -> Machine:
    """HGX H100 with dual-port ConnectX-6 Dx for Ethernet, as in imbue-ai/cluster-health#4. The worst place is
    taken: right beside a GPU, so that only the model gives them away. The BMC's NIC has no RDMA."""
    front = [
        _mlx(f"{_dgx_switch(nic)}:01.0/0000:{bus}:00.{function}", number, numa, CX6_DX, f"enp{number}")
        for nic, bus, numa, numbers in (("18", "19", 0, (1, 2)), ("9a", "9b", 1, (7, 8)))
        for function, number in enumerate(numbers)
    ]
    bmc = Function("pci0000:00/0000:00:1c.0/0000:02:00.0", "0200 8086 1533", 0, (), ("eno1",), "igb")
    return Machine("hgx-h100-cx6", (*_hgx_gpus(), *front, bmc), _SPR_CPUS, 112)


def hgx_4_nics() -> Machine:
    """Eight H100 and four ConnectX-7, as many clouds offer (NVIDIA/nccl#1454 is of one): two GPUs and one NIC
    below each switch. The addresses are made up."""
    functions = []
    for index, root in enumerate((0x20, 0x40, 0x80, 0xC0)):
        switch = f"pci0000:{root:02x}/0000:{root:02x}:01.0/0000:{root + 1:02x}:00.0/0000:{root + 2:02x}"
        for slot in range(2):
            functions += [_gpu(f"{switch}:0{slot}.0/0000:{root + 3 + slot:02x}:00.0", H100, index // 2)]
        functions += [_mlx(f"{switch}:02.0/0000:{root + 5:02x}:00.0", index, index // 2)]
    return Machine("hgx-4-nics", tuple(functions), _SPR_CPUS, 112)


def vm() -> Machine:
    """A VM with four GPUs and four ConnectX virtual functions passed through, each on a root port of the one
    host bridge and without NUMA, as QEMU's q35 does it by default; the physical functions are the host's."""
    functions = [
        _gpu(f"pci0000:00/0000:00:{2 + index:02x}.0/0000:{1 + index:02x}:00.0", H100, -1)
        for index in range(4)
    ]
    functions += [
        _mlx(f"pci0000:00/0000:00:{6 + index:02x}.0/0000:{5 + index:02x}:00.0", index, -1, CX_VF)
        for index in range(4)
    ]
    return Machine("vm", tuple(functions), ("0-31",), 0)


def p5_without_numa() -> Machine:
    """The p5 again, where firmware or container hides the NUMA nodes."""
    functions = tuple(replace(function, numa=-1) for function in p5().functions)
    return Machine("p5-without-numa", functions, ("0-191",), 96)


def laptop() -> Machine:
    """A laptop: integrated graphics, WiFi, no GPU of NVIDIA's, no RDMA."""
    return Machine(
        "laptop",
        (
            Function("pci0000:00/0000:00:02.0", "0300 8086 9a49", driver="i915"),
            Function("pci0000:00/0000:00:14.3", "0280 8086 a0f0", netdevs=("wlp0s20f3",), driver="iwlwifi"),
        ),
        ("0-7",),
        4,
    )


def cpu_host() -> Machine:
    """Two sockets with a ConnectX-7 each, no GPU."""
    return Machine(
        "cpu-host",
        tuple(
            _mlx(f"pci0000:{bus}/0000:{bus}:01.0/0000:{bus[0]}1:00.0", n, n)
            for n, bus in enumerate(("10", "90"))
        ),
        ("0-15,32-47", "16-31,48-63"),
        32,
    )


GPU_MACHINES = (
    p4d(),
    p5(),
    p5en(),
    p6_b200(),
    dgx_h100(),
    hgx_h100_ethernet_front_end(),
    hgx_4_nics(),
    vm(),
    p5_without_numa(),
)

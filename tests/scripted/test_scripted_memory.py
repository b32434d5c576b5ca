"""``Engine.register_all`` over the scripted libfabric: GPU memory, refusals, locked memory, progress.

The CUDA driver is scripted too (its dmabufs are pipes): no machine that runs this has a GPU.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from test_scripted import build, on

# Two NICs and eight buffers, with a CUDA driver that exports pipes for dmabufs.
REGISTER = """
import os, resource
from sglang_pd_fabric.fabric import registration
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.memory import CudaMemory, HostMemory
from sglang_pd_fabric.integration import engine as ours

class Registrations(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("host", "cuda", "dmabuf")] + [
        ("device", ctypes.c_int), ("fd", ctypes.c_int)
    ] + [(name, ctypes.c_uint64) for name in ("offset", "bytes", "base")]

def registrations():
    seen = Registrations()
    script.scripted_registrations_look(ctypes.byref(seen))
    look()
    return seen

class Driver:
    fds = []
    def locate(self, address): return None
    def exports_dmabuf(self, device): return True
    def export_dmabuf(self, device, address, nbytes):
        read, write = os.pipe()
        os.close(write)
        self.fds.append(read)
        return read

def refusal(memories, **options):
    opened = look().open_objects
    try:
        engine.register_all(memories, **options)
    except FabricError as error:
        assert look().open_objects == opened, "something of the list is still registered"
        return str(error)
    raise AssertionError("it was registered")

PAGE = 4096
profile = profiles.PROFILES["efa-direct"]
domains = ["rdmap79s0-rdm", "rdmap80s0-rdm"]
engine = Engine(library, profile, sources=[None, None], domains=domains, gpu={gpu})
memory = np.zeros(8 * PAGE, np.uint8)
on_host = [HostMemory(memory.ctypes.data + i * PAGE, PAGE) for i in range(8)]
on_gpu = [CudaMemory((1 << 40) + i * PAGE + 100, PAGE, 3) for i in range(8)]
"""


@pytest.fixture(scope="module")
def provider() -> Path:
    return build("plain") / "libscripted.so"


def registering(provider: Path, code: str, *, gpu: bool = False) -> Any:
    return on(provider, "p5", REGISTER.format(gpu=gpu) + code)


def test_gpu_memory_goes_to_every_nic_as_a_dmabuf_that_is_closed_afterwards(provider: Path) -> None:
    seen = registering(
        provider,
        """
regions = engine.register_all([*on_host, *on_gpu], driver=Driver())
seen = registrations()
print(json.dumps([
    seen.host, seen.cuda, seen.dmabuf, seen.device, seen.offset, seen.base,
    [region.by_dmabuf for region in regions], [region.index for region in regions],
    [os.path.exists(f"/proc/self/fd/{fd}") for fd in Driver.fds],
]))
""",
        gpu=True,
    )
    last_page = (1 << 40) + 7 * 4096
    assert seen == [16, 16, 16, 3, 100, last_page, [False] * 8 + [True] * 8, list(range(16)), [False] * 8]


def test_gpu_memory_that_no_way_reaches_is_refused_with_reasons_and_fixes(provider: Path) -> None:
    message = registering(
        provider,
        """
script.scripted_refuse_dmabuf(-95)
script.scripted_refuse_registration(ctypes.c_uint64(6), ctypes.c_uint64(1 << 62), -14)
print(json.dumps(refusal(on_gpu, driver=Driver())))
""",
        gpu=True,
    )
    # Two NICs register at the same time: which buffer is the first to be refused is the kernel's choice.
    found = re.search(r"buffer ([0-6]) of 8 was not registered, so none is", message)
    assert found, message
    for words in (
        f"{(1 << 40) + int(found[1]) * 4096 + 100:#x}",
        "as dmabuf: Operation not supported",
        "by address: Bad address",
        "nvidia_peermem",
    ):
        assert words in message


def test_gpu_memory_is_refused_by_an_engine_for_the_host_and_mapped_memory_by_efa(provider: Path) -> None:
    for_host, mapped = (
        registering(
            provider,
            f"print(json.dumps(refusal([*on_host, CudaMemory(1 << 40, PAGE, 3, {gpu})], driver=Driver())))",
            gpu=gpu,
        )
        for gpu in (False, True)
    )
    assert "buffer 8 of 9 is memory of CUDA device 3" in for_host
    assert "expandable_segments:False" in mapped


def test_a_lock_that_the_kernel_refuses_names_the_limit_the_pool_and_the_fix(provider: Path) -> None:
    message = registering(
        provider,
        """
resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]))
script.scripted_refuse_registration(ctypes.c_uint64(5), ctypes.c_uint64(1), -12)
print(json.dumps(refusal(on_host)))
""",
    )
    for words in (
        "of 8 was not registered",
        "32.0 KiB",
        "2 NICs lock 64.0 KiB",
        "limited to 64.0 KiB",
        "ulimit",
    ):
        assert words in message


def test_a_pool_larger_than_the_limit_is_refused_before_anything_is_registered(provider: Path) -> None:
    message, host = registering(
        provider,
        """
class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
# What a container's process has: not the right to lock beyond the limit.
header, sets = Header(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc = ctypes.CDLL(None, use_errno=True)
assert libc.capget(ctypes.byref(header), sets) == 0
sets[0] &= ~(1 << 14)
assert libc.capset(ctypes.byref(header), sets) == 0
resource.setrlimit(resource.RLIMIT_MEMLOCK, (60 << 10, resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]))
print(json.dumps([refusal(on_host), registrations().host]))
""",
    )
    assert host == 0
    for words in (
        "the pool has 32.0 KiB",
        "2 NICs lock 64.0 KiB",
        "limited to 60.0 KiB",
        "ulimit -l unlimited",
    ):
        assert words in message


def test_progress_is_told_after_every_slice_and_an_error_in_it_undoes_all(provider: Path) -> None:
    told, left = registering(
        provider,
        """
registration.SLICE_S = 0
told = []
engine.register_all(on_host, progress=lambda now: told.append([now.bytes_done, now.bytes_total]))
opened = look().open_objects
def broken(now):
    if now.bytes_done > 3 * PAGE:
        raise KeyboardInterrupt
try:
    engine.register_all(on_host, progress=broken)
except KeyboardInterrupt:
    print(json.dumps([told, look().open_objects - opened]))
""",
    )
    assert told == [[number * 4096, 8 * 4096] for number in range(1, 9)]
    assert left == 0


def test_a_long_registration_is_logged_and_ends_with_one_line(provider: Path) -> None:
    lines = registering(
        provider,
        """
registration.SLICE_S = ours.PROGRESS_S = 0
lines = []
class Keep(logging.Handler):
    def emit(self, record): lines.append(record.getMessage())
ours.logger.addHandler(Keep())
ours.logger.setLevel(logging.INFO)
ours.register_pool(engine, ours.Pool([*on_host, *on_gpu], Driver()))
print(json.dumps(lines))
""",
        gpu=True,
    )
    assert len(lines) == 16
    assert all(line.startswith("Registering memory: 0.0 of 0.0 GB") for line in lines[:-1])
    assert lines[-1].startswith("Registered 6.55e-05 GB in 16 regions with 2 NICs in ")
    assert lines[-1].endswith("; of 8 on a GPU 8 by dmabuf")

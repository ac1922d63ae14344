"""Real error messages of programs, and what they are recognised as."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bireme.tune.execution.diagnosis import exceptions, headline, of_another, of_disk, of_memory, of_port

FRAMES = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    loss = model(batch)  # MemoryError, CUDA out of memory: neither of them
           ^^^^^^^^^^^^
"""


def raised(*lines: str) -> str:
    return FRAMES + "\n".join(lines)


def really(program: str) -> str:
    """What Python says of a program that fails."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode
    return done.stderr


OUT_OF_MEMORY = {
    "torch": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.15 GiB of which 1.19 GiB is free. Process 1 has 77.95 GiB memory in use.",
    "torch 2.0": "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 978.00 MiB (GPU 0; 4.00 GiB total "
    "capacity; 1.68 GiB already allocated; 0 bytes free; 2.72 GiB reserved in total by PyTorch)",
    "torch 1": "RuntimeError: CUDA out of memory. Tried to allocate 36.00 MiB (GPU 0; 7.93 GiB total capacity)",
    "ROCm": "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 3.31 GiB. GPU 0 has a total capacity",
    "XPU": "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity",
    "IPEX": "RuntimeError: XPU out of memory. Tried to allocate 1.00 GiB (GPU 0; 15.56 GiB total capacity)",
    "oneAPI": "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    "oneAPI resources": "RuntimeError: UR backend failed. UR backend returns:40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)",
    "Ascend": "RuntimeError: NPU out of memory. Tried to allocate 52.00 MiB (NPU 0; 60.96 GiB total capacity)",
    "Apple": "RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB)",
    "Gaudi": "RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::1073741824 (1024)MB",
    "CUDA": "RuntimeError: CUDA error: out of memory",
    "CUDA, newer": "torch.AcceleratorError: CUDA error: out of memory",
    "HIP": "RuntimeError: HIP error: out of memory",
    "driver": "RuntimeError: CUDA driver error: out of memory",
    "runtime": "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory",
    "numba": "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
    "cuBLAS": "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN": "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "hipBLAS": "RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
    "CPU": "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 4000000000000000 bytes. Error code 12 (Cannot allocate memory)",
    "CPU, elsewhere": "RuntimeError: [enforce fail at alloc_cpu.cpp:117] data. DefaultCPUAllocator: not enough memory: "
    "you tried to allocate 31850496000 bytes.",
    "Python": "MemoryError",
    "NumPy": "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 32.0 GiB for an array with shape (2048,)",
    "NumPy, older": "numpy.core._exceptions.MemoryError: Unable to allocate 7.91 GiB for an array with shape (7,)",
    "cupy": "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes",
    "JAX": "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 47 bytes.",
    "TensorFlow": "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor",
    "C++": "RuntimeError: std::bad_alloc",
    "fork": "OSError: [Errno 12] Cannot allocate memory",
    "mmap": "RuntimeError: unable to mmap 1024 bytes from file </torch_1_2_3>: Cannot allocate memory (12)",
    "worker": "RuntimeError: DataLoader worker (pid 325) is killed by signal: Killed. ",
    "shared memory": "RuntimeError: DataLoader worker (pid 46794) is killed by signal: Bus error. It is possible that "
    "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
}

NOT_OUT_OF_MEMORY = {
    "an ordinary error": "ValueError: memory is not what we are short of; out of memory, we say",
    "shared memory of a kernel": "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 98304"
    ", Hardware limit: 65536. Reducing block sizes or `num_stages` may help.",
    "illegal access": "RuntimeError: CUDA error: an illegal memory access was encountered",
    "a size gone wrong": "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
    "pinning": "RuntimeError: CUDA error: invalid argument",
    "a message too large": "grpc.RpcError: RESOURCE_EXHAUSTED: Received message larger than max (5 vs. 4)",
    "a full disk": "OSError: [Errno 28] No space left on device",
    "an option": "ValueError: pin_memory must be a bool, not 'MemoryError'",
}


@pytest.mark.parametrize("line", OUT_OF_MEMORY.values(), ids=list(OUT_OF_MEMORY))
def test_out_of_memory(line):
    said = of_memory(raised(line))
    assert said == line.strip()[: len(said.removesuffix("…"))] + ("…" if said.endswith("…") else "")
    assert said


@pytest.mark.parametrize("line", NOT_OUT_OF_MEMORY.values(), ids=list(NOT_OUT_OF_MEMORY))
def test_not_out_of_memory(line):
    assert of_memory(raised(line)) == ""


def test_nccl_says_the_reason_in_the_fourth_line():
    detail = raised(
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/ProcessGroupNCCL.cpp:1275, unhandled cuda error",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "Last error:",
        "Cuda failure 2 'out of memory'",
    )
    assert of_memory(detail) == "Cuda failure 2 'out of memory'"


def test_a_death_in_native_code():
    words = "terminate called after throwing an instance of 'c10::OutOfMemoryError'\n  what():  CUDA out of memory."
    assert "c10::OutOfMemoryError" in of_memory(words)
    assert of_memory("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc")


def test_an_exception_that_led_to_another():
    said = really("try:\n    raise MemoryError('the first')\nexcept MemoryError:\n    raise ValueError from None.x")
    assert of_memory(said) == "MemoryError: the first"
    assert headline(said).startswith("AttributeError: ")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.11 has exception groups")
def test_a_group_of_exceptions():
    said = really(
        "def made(error):\n  try: raise error\n  except BaseException as made: return made\n"
        "raise ExceptionGroup('several', [made(ValueError('small')), made(MemoryError('large'))])"
    )
    assert of_memory(said) == "MemoryError: large"
    assert len(exceptions(said)) == 3


def test_what_a_worker_of_a_loader_has_raised():
    detail = raised(
        "RuntimeError: Caught MemoryError in DataLoader worker process 0.",
        "Original Traceback (most recent call last):",
        '  File "/site-packages/torch/utils/data/_utils/worker.py", line 309, in _worker_loop',
        "    data = fetcher.fetch(index)",
        "MemoryError: in the worker",
    )
    assert of_memory(detail) == "MemoryError: in the worker"


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("raise ValueError('one\\ntwo')", "ValueError: one"),
        ("raise AssertionError", "AssertionError"),
        ("import queue; queue.Queue().get_nowait()", "_queue.Empty"),
        ("x = = 1", "SyntaxError: invalid syntax"),
        ("import sys; sys.exit('the data are\\nnot there')", "not there"),
        ("1/0", "ZeroDivisionError: division by zero"),
        ("raise ValueError('x' * 500)", "ValueError: " + "x" * 187 + "…"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_headline(program, line):
    assert headline(really(program)) == line


def test_nothing_said():
    assert (headline(""), of_memory(""), of_port(""), exceptions(" \n")) == ("", "", "", ())


@pytest.mark.parametrize(
    "line",
    [
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "RuntimeError: The server socket has failed to listen on any local network address. The server socket "
        "has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
        "OSError: [Errno 98] Address already in use",
    ],
)
def test_a_port_that_is_taken(line):
    assert of_port(raised(line))
    assert not of_memory(raised(line))


@pytest.mark.parametrize(
    "line",
    ["OSError: [Errno 28] No space left on device: 'metrics.json'", "OSError: [Errno 122] Disk quota exceeded"],
)
def test_a_disk_that_is_full(line):
    assert of_disk(raised(line))
    assert not of_memory(raised(line))


def test_shared_memory_is_no_disk():
    assert not of_disk(raised("RuntimeError: unable to write to file </torch_71_1>: No space left on device (28)"))


def test_no_port():
    assert not of_port(raised("ValueError: port 29500"))


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: [/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:43906. "
        "This is typically caused by a remote worker crashing.",
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.hpp:268, remote process exited or there "
        "was a network error, NCCL version 2.21.5",
        "torch.distributed.DistNetworkError: Connection was likely closed. Did the remote server shutdown or crash? "
        "Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
)
def test_only_that_another_is_gone(line):
    assert of_another(raised(line))
    assert not of_another(raised("ValueError: boom"))

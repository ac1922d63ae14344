"""The template: a Python that waits at the end of its start-up, with modules imported; its forks become the ranks.

It is started by the command line of a rank, and this file is its ``sitecustomize``, which Python imports just before it
runs the script. Here it imports the modules, examines itself, and serves the guardian (`bireme.process.templates`). A
fork takes the rank's environment, streams and cores, and returns from here. So the interpreter itself runs the script,
as in every rank: ``__main__``, tracebacks and exit codes need no imitation.

It runs in the ranks' Python, 3.8 or later, imports the standard library only, and is sent as source.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _socket
import ctypes
import marshal
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from typing import Any

HARMLESS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
HEAVY = frozenset(
    (  # noqa: SIM905  (one row a word is long)
        "accelerate cupy datasets deepspeed diffusers jax lightning matplotlib numba numpy pandas peft PIL"
        " pytorch_lightning scipy sklearn timm tokenizers torch torchaudio torchvision transformers triton trl"
    ).split()
)
"""What ``--preload auto`` imports if the script does."""
LATER = {"torch": "torch._dynamo"}
"""What modules import only when they are used: nearly every training, as torch's optimizers import theirs. It takes as
long as torch itself."""
MEASURES = ("cProfile", "coverage", "profile", "trace")
"""Programs that have to see what another one imports. (And coverage fails where it finds torch imported.)"""
_SET_NAME, _PDEATHSIG, _SET_MM, _MM_MAP, _SET_PTRACER = 15, 1, 35, 14, 0x59616D61
_SELF_TEST = 60
_MOST_PASSED = 253  # of the kernel
_SYNTAX_ONLY = 0x400


class UnsafeError(Exception):
    """Why ranks cannot be forked from this process."""


def send(channel: _socket.socket, value: Any, fds: Sequence[int] = ()) -> None:
    """Send a value, of any size, and descriptors."""
    body = os.memfd_create("message")
    os.write(body, marshal.dumps(value, 2))
    passed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (body, *fds))
    try:
        channel.sendmsg([b"message"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, passed)])
    finally:
        os.close(body)


def receive(channel: _socket.socket) -> tuple[Any, list[int]]:
    """A value that was sent, and descriptors.

    Raises:
        OSError: the other side is gone.
        ValueError: that was no message.
    """
    ancillary = channel.recvmsg(16, _socket.CMSG_SPACE(4 * _MOST_PASSED), _socket.MSG_CMSG_CLOEXEC)[1]
    passed = b"".join(bytes(item[2]) for item in ancillary)
    body, *fds = (int.from_bytes(passed[at : at + 4], sys.byteorder) for at in range(0, len(passed), 4))
    value = marshal.loads(os.pread(body, os.fstat(body).st_size, 0))
    os.close(body)
    return value, fds


def hold() -> None:
    """Be the template. Only the ranks return from this call, each in its own process."""
    channel, setup, inherited = _begin()
    try:
        template = Template(channel, inherited)
        _import_all(setup)
        template.examine()
    except UnsafeError as reason:
        channel.send(b"cold " + str(reason).encode("utf-8", "replace")[:2000])
        os._exit(0)
    channel.send(b"ready")
    template.serve()


def _begin() -> tuple[_socket.socket, dict[str, Any], set[int]]:
    """Take what the guardian has sent, and remove every trace of how this file came to be imported."""
    channel_fd, archive = map(int, os.environ.pop("BIREME_TEMPLATE").split(","))
    channel, place = _socket.socket(fileno=channel_fd), f"/proc/self/fd/{archive}"
    setup = receive(channel)[0]
    sys.path[:] = [each for each in sys.path if each != place]
    sys.path_importer_cache.pop(place, None)
    if "zipimport" in sys.modules:
        sys.modules["zipimport"]._zip_directory_cache.pop(place, None)
    for own in ("sitecustomize", __name__, "_socket", "__future__"):  # and what a script may not have imported
        sys.modules.pop(own, None)
    os.close(archive)
    os.environ.pop("PYTHONPATH", None)
    os.environ.update(setup["restore"])
    return channel, setup, set(_descriptors()) - {channel_fd}


def _import_all(setup: Mapping[str, Any]) -> None:
    """Import what is customary, then the modules, with the search path of the script."""
    import site

    if os.path.basename(setup["program"][-1]) in MEASURES:
        raise UnsafeError(f"{os.path.basename(setup['program'][-1])} is to see what the script imports")
    for name in ("sitecustomize",) + (("usercustomize",) if site.ENABLE_USER_SITE else ()):
        try:
            __import__(name)
        except ImportError as error:
            if error.name != name:
                raise UnsafeError(f"{name}: {error}") from None
        except Exception as error:
            raise UnsafeError(f"{name}: {error}") from None
    folder, script = _script(setup["program"])
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)
    try:
        named = (_heavy_imports(script) if each == "auto" else [each] for each in setup["modules"])
        names = list(dict.fromkeys(name for found in named for name in found))
        if not names:
            raise UnsafeError("the script imports none of the modules that `auto` knows")
        if setup["program"][0] != "-m":
            sys.modules["__main__"].__file__ = os.path.abspath(script) if sys.version_info >= (3, 9) else script
        end = _refusing(setup["of_ranks"])
        for name in (*names, *LATER.values()):
            try:
                if name in names or name.partition(".")[0] in sys.modules:
                    __import__(name)
            except BaseException as error:
                if name not in names and isinstance(error, ImportError):
                    continue  # an older version
                raise UnsafeError(f"importing {name} failed: {type(error).__name__}: {error}") from None
        end()
    finally:
        if folder in sys.path and not getattr(sys.flags, "safe_path", False):
            sys.path.remove(folder)
        sys.modules["__main__"].__dict__.pop("__file__", None)


def _script(program: Sequence[str]) -> tuple[str, str]:
    """The folder that Python puts before the search path, and the file of the script; "": not known."""
    if program[0] != "-m":
        return os.path.dirname(os.path.realpath(program[0])), program[0]
    from importlib.machinery import PathFinder

    here = os.getcwd()
    found, places = None, [here, *sys.path]
    for name in (*program[1].split("."), "__main__"):  # which a module has not
        spec = PathFinder.find_spec(name, places)
        if spec is None:
            break
        found, places = spec, list(spec.submodule_search_locations or ())
    return here, found.origin or "" if found else ""


def _heavy_imports(script: str) -> list[str]:
    """The heavy modules that the script imports outside of functions, in its order."""
    try:
        waiting = [compile(_read(script), script, "exec", _SYNTAX_ONLY, dont_inherit=True)]
    except (OSError, SyntaxError, ValueError):
        return []
    found = []
    while waiting:
        node = waiting.pop(0)
        kind = type(node).__name__
        if kind == "Import":
            found += [alias.name for alias in node.names]
        elif kind == "ImportFrom" and node.module and not node.level:
            found.append(node.module)
        elif kind in ("Module", "If", "Try", "TryStar", "With", "ExceptHandler"):
            waiting[:0] = [
                each for part in ("body", "handlers", "orelse", "finalbody") for each in getattr(node, part, ())
            ]
    return [name for name in found if name.partition(".")[0] in HEAVY]


def _refusing(names: Collection[str]) -> Callable[[], None]:
    """Note which variables of a rank are read from now on: those are not known yet. Returns what ends it, and tells."""
    kind: Any = type(os.environ)
    plain: Any = kind.__getitem__
    found: dict[str, str] = {}

    def look(environ: Any, name: str) -> Any:
        if name in names:
            frame = sys._getframe(1)
            while frame.f_back and frame.f_globals.get("__name__") in ("os", "collections.abc", "_collections_abc"):
                frame = frame.f_back
            found.setdefault(name, frame.f_globals.get("__name__", "?"))
        return plain(environ, name)

    def end() -> None:
        kind.__getitem__ = plain
        for name, module in found.items():
            raise UnsafeError(f"{module} reads {name} while it is imported, which differs between ranks")

    kind.__getitem__ = look
    return end


class Template:
    """A process whose imports are done.

    Args:
        inherited: the descriptors that it has before the imports.
    """

    def __init__(self, channel: _socket.socket, inherited: set[int]) -> None:
        self.channel, self.inherited, self.begun = channel, inherited, dict(os.environ)
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.name = _read("/proc/self/comm").rstrip(b"\n")  # as the kernel shows this process
        self.libc.prctl(_SET_NAME, b"bireme-warm", 0, 0, 0)

    # -- is it safe? -----------------------------------------------------------------------------

    def examine(self) -> None:
        """Note what the imports have done. Raise UnsafeError if a fork is not as good as a process of its own."""
        self.changes = {name: value for name, value in os.environ.items() if self.begun.get(name) != value}
        self.said = [os.pread(fd, os.fstat(fd).st_size, 0) for fd in (1, 2)]
        self.blas = list(_blas())
        self.files = dict(_files())
        threads = os.listdir("/proc/self/task")
        if len(threads) > 1:
            names = sorted({_read(f"/proc/self/task/{each}/comm").decode().strip() for each in threads})
            raise UnsafeError(f"after the imports the process has {len(threads)} threads ({', '.join(names)})")
        monitoring: Any = getattr(sys, "monitoring", None)
        if sys.gettrace() or sys.getprofile() or (monitoring and any(map(monitoring.get_tool, range(6)))):
            raise UnsafeError("a debugger or coverage is active")
        for fd in _descriptors():
            if fd not in self.inherited and fd != self.channel.fileno():
                where = os.readlink(f"/proc/self/fd/{fd}")
                if where not in HARMLESS:
                    raise UnsafeError(f"after the imports the process has opened {where}")
        for line in _read("/proc/self/maps").splitlines():
            words = line.split(None, 5)
            if words[1] == b"rw-s":
                raise UnsafeError(f"after the imports it shares memory ({os.fsdecode(words[-1])})")
        if _read(f"/proc/self/task/{os.getpid()}/children").strip():
            raise UnsafeError("the imports have started a process")
        if any(signal.getitimer(which)[0] for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)):
            raise UnsafeError("the imports have set a timer")
        self._test()

    def _test(self) -> None:
        """Let a fork do what ranks do first."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(_SELF_TEST)
                self._use()
                code = 0
            finally:
                os._exit(code)
        status = os.waitpid(pid, 0)[1]
        if status:
            how = f"signal {status & 127}" if status & 127 else "an error"
            said = os.pread(2, 4096, len(self.said[1])).decode("utf-8", "replace").strip()
            raise UnsafeError(f"a fork of it failed its test by {how}: {said[said.rfind(chr(10)) + 1 :]}")

    def _use(self) -> None:
        import threading

        self._show(["a", "b"], {"BIREME_JOB": "test"})
        if _read("/proc/self/cmdline") != b"a\0b\0" or _read("/proc/self/environ") != b"BIREME_JOB=test\0":
            os.write(2, b"the kernel does not show the command line of a fork")
            os._exit(1)
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        self._set_threads({})
        if "numpy" in sys.modules:
            ones = sys.modules["numpy"].ones((64, 64))
            ones.dot(ones)
        if "torch" in sys.modules:
            ones = sys.modules["torch"].ones(64, 64)
            (ones @ ones).sum().item()

    # -- ranks -----------------------------------------------------------------------------------

    def serve(self) -> None:
        """Fork a rank for each request. Returns in the ranks; ends the process if the guardian wants no more."""
        while True:
            try:
                request, fds = receive(self.channel)
            except (OSError, ValueError):
                os._exit(0)
            if dict(_files()) != self.files:
                self.channel.send(b"stale")
                os._exit(0)
            if self._fork(request, fds):
                return
            for fd in fds:
                os.close(fd)

    def _fork(self, request: Mapping[str, Any], fds: Sequence[int]) -> bool:
        """Fork a rank that is the guardian's child: its parent is a process that ends at once."""
        go_read, go_write = os.pipe()
        own = os.getpid()
        try:
            between = os.fork()
            middle = os.getpid()
            rank = -1 if between else os.fork()
        except OSError as error:
            self.channel.send(b"unborn %d %d" % (request["index"], error.errno or 0))
            if os.getpid() != own:
                os._exit(1)
            between = 0
        if os.getpid() == own:
            os.close(go_read)
            os.close(go_write)
            if between:
                os.waitpid(between, 0)
            return False
        if rank:
            # The guardian learns of the rank before it becomes its child, and the rank waits until that was sent.
            self.channel.send(b"up %d %d" % (request["index"], rank))
            os.write(go_write, b"x")
            os._exit(0)
        os.close(go_write)
        if not os.read(go_read, 1):
            os._exit(1)
        try:
            self._become(request, fds, middle)
        except BaseException as error:
            os.write(2, f"bireme: cannot start this rank: {error!r}\n".encode("utf-8", "replace"))
            os._exit(126)
        return True

    def _become(self, request: Mapping[str, Any], fds: Sequence[int], middle: int) -> None:
        """Be a rank as the guardian's child, with its streams, environment and cores."""
        os.setsid()
        while os.getppid() == middle:
            time.sleep(0.0002)
        self.libc.prctl(_PDEATHSIG, request["death"], 0, 0, 0)
        if os.getppid() != request["parent"]:
            os._exit(128 + signal.SIGKILL)
        self.libc.prctl(_SET_PTRACER, request["tracer"], 0, 0, 0)
        self.libc.prctl(_SET_NAME, self.name, 0, 0, 0)
        for target in range(3):
            os.dup2(fds[target], target, inheritable=True)
        self.channel.close()
        for fd in _descriptors():
            if fd not in self.inherited:
                os.close(fd)
        for fd in (1, 2):
            said = self.said[fd - 1]
            while said:
                said = said[os.write(fd, said) :]
        for stream, fd, mode in ((sys.__stdin__, 0, "rb"), (sys.__stdout__, 1, "wb"), (sys.__stderr__, 2, "wb")):
            if stream is not None:
                _renew(stream, fd, mode)
        if request["cores"]:
            os.sched_setaffinity(0, request["cores"])
        removed = self.begun.keys() - os.environ.keys()
        env = {name: value for name, value in request["env"].items() if name not in removed}
        env.update(self.changes)
        os.environ.clear()
        os.environ.update(env)
        argv = request["argv"]
        sys.argv[1:] = argv[len(argv) - request["words"] :]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = argv
        self._show(argv, request["env"])
        self._set_threads(env)
        _renew_seeds()

    def _show(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Let the kernel show this command line and environment for this process, in ps and below /proc."""
        fields = _read("/proc/self/stat").rpartition(b")")[2].split()
        words = b"".join(os.fsencode(word) + b"\0" for word in argv)
        block = words + b"".join(os.fsencode("{}={}".format(*pair)) + b"\0" for pair in env.items())
        self.libc.malloc.restype = self.libc.sbrk.restype = ctypes.c_void_p
        self.libc.malloc.argtypes = (ctypes.c_size_t,)
        begin = self.libc.malloc(len(block) + 1)  # never freed
        ctypes.memmove(begin, block, len(block))
        # start and end of code and data; start and end of the heap; the stack
        own = [int(fields[number - 3]) for number in (26, 27, 45, 46, 47)]
        places = [*own, self.libc.sbrk(0), int(fields[28 - 3])]
        places += [begin, begin + len(words), begin + len(words), begin + len(block), 0]
        table = (ctypes.c_uint64 * 13)(*places, 0xFFFFFFFF << 32 if sys.byteorder == "little" else 0xFFFFFFFF)
        self.libc.prctl(_SET_MM, _MM_MAP, ctypes.byref(table), ctypes.c_ulong(ctypes.sizeof(table)), 0)

    def _set_threads(self, env: Mapping[str, str]) -> None:
        """Give libraries of linear algebra the threads that they would have started with."""
        cores = len(os.sched_getaffinity(0))
        given = [env.get(name, "") for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")]
        number = next((int(text) for text in given if text.isdigit() and int(text)), cores)
        for set_threads in self.blas:
            set_threads(min(number, cores))


def _renew(stream: Any, fd: int, mode: str) -> None:
    """Initialize a standard stream as Python does at its start, for the file that the descriptor is now."""
    buffering = 0 if stream.write_through and mode == "wb" else -1
    file: Any = open(fd, mode, buffering, closefd=False)
    getattr(file, "raw", file).name = stream.name
    options = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
    stream.__init__(file, stream.encoding, stream.errors, "\n", **options)


def _renew_seeds() -> None:
    """Give this process random numbers and a secret of its own; `random` has done so itself."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch.random" in sys.modules:
        sys.modules["torch.random"].default_generator.seed()
    if "multiprocessing.process" in sys.modules:
        process = sys.modules["multiprocessing.process"]
        process.current_process()._config["authkey"] = process.AuthenticationString(os.urandom(32))
    if "threading" in sys.modules:
        sys.modules["threading"].main_thread()._set_native_id()


def _blas() -> Iterator[Any]:
    """The functions that set the number of threads of each OpenBLAS that is loaded."""
    paths = {
        os.fsdecode(line.split(None, 5)[-1]) for line in _read("/proc/self/maps").splitlines() if b"openblas" in line
    }
    for path in sorted(paths):
        library = ctypes.CDLL(path)
        for name in ("openblas_set_num_threads", "scipy_openblas_set_num_threads"):
            for suffix in ("", "64_", "_64"):
                if hasattr(library, name + suffix):
                    yield getattr(library, name + suffix)


def _files() -> Iterator[tuple[str, tuple[int, int]]]:
    """The files of the modules, with their times and sizes."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str):
            try:
                found = os.stat(path)
            except OSError:
                continue
            yield path, (found.st_mtime_ns, found.st_size)


def _descriptors() -> list[int]:
    """The open descriptors."""
    found = [int(name) for name in os.listdir("/proc/self/fd")]
    return [fd for fd in found if os.path.islink(f"/proc/self/fd/{fd}")]  # not that of the list


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()

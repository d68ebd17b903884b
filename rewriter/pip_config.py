"""What the user's pip is told about package indexes, and an HTTP client that obeys it."""

from __future__ import annotations

import ast
import importlib
import os
import re
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from unearth import PackageFinder
from unearth.auth import MultiDomainBasicAuth
from unearth.fetchers import PyPIClient

from rewriter.cache import os_errors
from rewriter.errors import RewriterError

Say = Callable[[str], None]

_TRUE = {"1", "true", "yes", "on", "y", "t"}
_SETTING = re.compile(r"(?P<key>[\w:.-]+)=(?P<value>(['\"]).*\3)")


@dataclass(frozen=True)
class PipConfig:
    """The part of pip's configuration that says where packages come from and how to get there."""

    indexes: tuple[str, ...]
    find_links: tuple[str, ...]
    cert: str = ""
    client_cert: str = ""
    proxy: str = ""
    trusted_hosts: tuple[str, ...] = ()
    timeout: float = 15.0

    @classmethod
    def of_user(cls, say: Say) -> PipConfig:
        """Read the configuration of this Python's pip, or only PIP_* variables if it has none.

        Raises RewriterError when pip cannot read its own configuration.
        """
        return cls.from_settings(_pip_settings(say))

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> PipConfig:
        """Choose among settings named as in `pip config list`: environment, [download], [global].

        Raises RewriterError for a timeout that is no number.
        """

        def option(*names: str) -> str:
            keys = (f"{part}.{name}" for part in (":env:", "download", "global") for name in names)
            return next((settings[key] for key in keys if settings.get(key)), "")

        indexes: list[str] = []
        if option("no-index").lower() not in _TRUE:
            # A finder with no source at all has the default index, which need not be named here.
            default = PackageFinder().sources[0]["url"]
            indexes = [option("index-url") or default, *option("extra-index-url").split()]
        try:
            timeout = float(option("timeout", "default-timeout") or cls.timeout)
        except ValueError:
            raise RewriterError("pip's option timeout is no number; mend it") from None
        return cls(
            indexes=tuple(indexes),
            find_links=tuple(map(_as_url, option("find-links").split())),
            cert=option("cert") or _first_variable("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
            client_cert=option("client-cert"),
            proxy=option("proxy"),
            trusted_hosts=tuple(option("trusted-host").split()),
            timeout=timeout,
        )

    def redact(self, text: str) -> str:
        """Return the first line of `text` without any password of this configuration in it."""
        line = text.strip().partition("\n")[0]
        for url in (*self.indexes, *self.find_links, _with_scheme(self.proxy)):
            # Exceptions quote passwords outside of URLs, too.
            for secret in _secrets(url):
                line = line.replace(secret, "***")
        # The last "@" ends the user's part, however oddly the password was written.
        line = re.sub(r"://[^\s'\"]*@", "://***@", line)
        return re.sub(r"(://[^\s?'\"]*)\?[^\s'\"]*", r"\1?***", line)


def _pip_settings(say: Say) -> dict[str, str]:
    """Return what `pip config list` prints. It holds passwords: never show it."""
    # Quiet, pip prints nothing, and verbose, it prints more than settings.
    env = os.environ | {"PIP_QUIET": "0", "PIP_VERBOSE": "0", "PYTHONIOENCODING": "utf-8"}
    with os_errors("this Python's pip cannot be started"):
        run = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"],
            env=env,
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    text = run.stdout.decode("utf-8", "surrogateescape")
    if run.returncode == 0:
        settings = (_SETTING.fullmatch(line) for line in text.splitlines())
        return {found["key"]: str(ast.literal_eval(found["value"])) for found in settings if found}
    if b"No module named pip" in run.stderr:
        say("this Python has no pip: its configuration files are not read, only PIP_* variables")
        return _environment_settings()
    # What pip complains of may be a line with a password, so it is not repeated here.
    raise RewriterError("pip cannot read its configuration; run pip config list and mend it")


def _environment_settings() -> dict[str, str]:
    """Return the PIP_* variables as `pip config list` would name them."""
    return {
        ":env:." + key.removeprefix("PIP_").lower().replace("_", "-"): value
        for key, value in os.environ.items()
        if key.startswith("PIP_")
    }


def http_client(config: PipConfig) -> PyPIClient:
    """Make the HTTP client; raises RewriterError for certificates or a proxy that do not work."""
    context = _tls(config)
    insecure = _tls(config, verify=False)
    proxy = _with_scheme(config.proxy)
    try:
        client = PyPIClient(
            trusted_hosts=config.trusted_hosts,
            verify=context,
            proxy=proxy or None,
            follow_redirects=True,
            timeout=config.timeout,
            mounts=_trusted_mounts(config.trusted_hosts, insecure, proxy),
        )
    except Exception as error:  # the HTTP library's own errors: a bad proxy URL, mostly
        raise RewriterError(
            f"pip's network options cannot be used: {config.redact(str(error))}; mend them"
        ) from None
    client.auth = MultiDomainBasicAuth(prompting=False, index_urls=config.indexes)
    return client


def _tls(config: PipConfig, verify: bool = True) -> ssl.SSLContext:
    """Trust the user's certificates, or else those of the system and those of certifi."""
    with os_errors(f"pip's option cert ({config.cert}) cannot be used"):
        if config.cert:
            folder = Path(config.cert).is_dir()
            context = ssl.create_default_context(
                cafile=None if folder else config.cert, capath=config.cert if folder else None
            )
        else:
            context = ssl.create_default_context()
            _add_certifi(context)
    if config.client_cert:
        with os_errors(f"pip's option client-cert ({config.client_cert}) cannot be used"):
            # Asked for a pass phrase, the TLS library would wait at the terminal.
            context.load_cert_chain(config.client_cert, password="")
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _add_certifi(context: ssl.SSLContext) -> None:
    # A Python that was built elsewhere often finds no certificates of the system.
    try:
        certifi = importlib.import_module("certifi")
    except ImportError:
        return
    context.load_verify_locations(certifi.where())


def _trusted_mounts(hosts: tuple[str, ...], context: ssl.SSLContext, proxy: str) -> dict[str, Any]:
    """Reach trusted hosts through the proxy: left to itself, the client goes around it."""
    if not hosts:
        return {}
    # The name of the HTTP library differs between versions of unearth.
    library = PyPIClient.__mro__[1].__module__.partition(".")[0]
    transport = importlib.import_module(library).HTTPTransport
    mounts = {}
    for host in hosts:
        environment = urllib.request.getproxies()
        for scheme in ("http", "https"):
            by_name = "" if urllib.request.proxy_bypass(host) else environment.get(scheme, "")
            via = proxy or _with_scheme(by_name)
            mounts[f"{scheme}://{host}"] = transport(verify=context, proxy=via or None)
    return mounts


def _as_url(place: str) -> str:
    """Return a find-links entry as a URL; local ones are mostly plain paths."""
    path = Path(os.path.expanduser(place))  # noqa: PTH111 - this one never raises
    return path.resolve().as_uri() if path.exists() else place


def _with_scheme(proxy: str) -> str:
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"


def _secrets(url: str) -> set[str]:
    """Return the passwords in a URL, as written and as sent; short ones are left to the pattern."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return set()
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    found = {password or user, unquote(password or user)}
    return {secret for secret in found if len(secret) > 3}


def _first_variable(*names: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")

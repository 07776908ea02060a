"""Certificates for tests, made at run time by `openssl`: an authority, servers, clients."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from carpool.errors import ConfigError

VALID = ("-days", "30")
EXPIRED = ("-days", "-1")


class CertificateFiles(NamedTuple):
    """The files of one certificate in PEM. `both`: key and certificate, as a broker reads them."""

    certificate: Path
    key: Path
    both: Path


class CertificateAuthority:
    """Signs certificates for 127.0.0.1; its files and theirs are in `folder`."""

    def __init__(self, folder: Path) -> None:
        """Makes key and certificate of the authority. Raises `ConfigError` without `openssl`."""
        if shutil.which("openssl") is None:
            raise ConfigError("no certificates can be made: install the command openssl")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.certificate = folder / "authority.pem"
        self._key = folder / "authority.key"
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        _openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=authority", *usage,
            *VALID, "-keyout", str(self._key), "-out", str(self.certificate),
        )  # fmt: skip

    def sign(self, name: str, *, expired: bool = False, password: str = "") -> CertificateFiles:
        """Returns a new certificate with the common name `name`, valid for 30 days or expired.

        `password` encrypts the key in the file `key`.
        """
        stem = f"{name}-expired" if expired else name
        certificate, key, both = (
            self._folder / f"{stem}{end}" for end in (".pem", ".key", ".both.pem")
        )
        request, extensions = self._folder / f"{stem}.csr", self._folder / f"{stem}.ext"
        extensions.write_text(
            "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n"
        )
        _openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
            "-keyout", str(key), "-out", str(request),
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.certificate),
            "-CAkey", str(self._key), "-CAcreateserial", "-extfile", str(extensions),
            *(EXPIRED if expired else VALID), "-out", str(certificate),
        )  # fmt: skip
        both.write_text(key.read_text() + certificate.read_text())
        if password:
            clear = key.rename(key.with_suffix(".clear.key"))
            _openssl(
                "pkcs8", "-topk8", "-in", str(clear), "-passout", f"pass:{password}",
                "-out", str(key),
            )  # fmt: skip
        return CertificateFiles(certificate, key, both)


def _openssl(*arguments: str) -> None:
    command = [shutil.which("openssl") or "openssl", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"openssl failed: {done.stderr}")

"""The bill of materials that PEP 770 puts into a wheel, as CycloneDX; the same bytes every time."""

from __future__ import annotations

import datetime
import hashlib
import uuid

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from rewriter.base import Base

#: Below the dist-info folder.
PATH = "sboms/vllm-ascend-rewriter.cdx.json"
#: CycloneDX wants a time; a build that repeats byte for byte has none to tell.
_TIME = datetime.datetime(1980, 1, 1, tzinfo=datetime.UTC)
_LICENCE = "Apache-2.0"


def sbom(base: Base, *, name: str, version: str, project_version: str, manifest: bytes) -> bytes:
    """Return the CycloneDX 1.6 document of the wheel `name` `version`.

    The hash of vLLM is that of its archive; a folder has none, so its digest is a property. The
    serial number comes from the content (`manifest` lists every file), not from chance.
    """
    content = hashlib.sha256(manifest).hexdigest()
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_OID, f"{name} {version} {content}"))
    bom.metadata.timestamp = _TIME
    bom.metadata.tools.components.add(
        _component("vllm-ascend-rewriter", project_version, ComponentType.APPLICATION)
    )
    root = _component(name, version, ComponentType.LIBRARY, purl=True)
    bom.metadata.component = root
    runtime = _component("ascend_runtime", project_version, ComponentType.LIBRARY)
    vllm = _vllm(base)
    for component in (vllm, runtime):
        bom.components.add(component)
    bom.register_dependency(root, [vllm, runtime])
    return (JsonV1Dot6(bom).output_as_string(indent=1) + "\n").encode()


def _component(name: str, version: str, kind: ComponentType, *, purl: bool = False) -> Component:
    return Component(
        name=name,
        version=version,
        type=kind,
        bom_ref=f"{name}@{version}",
        licenses=[LicenseFactory().make_from_string(_LICENCE)],
        purl=PackageURL("pypi", name=name, version=version) if purl else None,
    )


def _vllm(base: Base) -> Component:
    published = base.origin in ("sdist", "wheel")
    component = _component(base.name, base.version, ComponentType.LIBRARY, purl=published)
    component.bom_ref.value = (
        f"base:{base.name}@{base.version}"  # the drop-in form has that name too
    )
    if published:
        component.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=base.sha256))
    else:
        component.properties.add(Property(name="tree:sha256", value=base.sha256))
    if base.commit:
        component.properties.add(Property(name="git:commit", value=base.commit))
    return component

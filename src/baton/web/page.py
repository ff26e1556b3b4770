"""A page that comes with the package: one document, nothing from elsewhere, and a policy that holds it to that."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The page as it is sent.

    Attributes:
        html: one document, its style and script inside.
        policy: the Content-Security-Policy that lets nothing but this style and this script run.
    """

    html: bytes
    policy: str

    @property
    def headers(self) -> dict[str, str]:
        """To be sent with it."""
        return {
            "Content-Security-Policy": self.policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        }


def load_page(package: str) -> Page:
    """Read `static/page.html` of a package."""
    html = resources.files(package).joinpath("static/page.html").read_text(encoding="utf-8")
    return Page(html=html.encode(), policy=content_security_policy(html))


def content_security_policy(html: str) -> str:
    """The strictest policy under which a page with inline <style> and <script> elements works.

    Hashes are over the elements' text (Content Security Policy Level 3, section 6.7.2.3).
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hashes(html, 'script')}",
            f"style-src {_hashes(html, 'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _hashes(html: str, tag: str) -> str:
    texts = re.findall(rf"<{tag}>(.*?)</{tag}>", html, flags=re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)

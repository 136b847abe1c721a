"""Access control: pages of other sites are refused, and clients on other machines need the token.

The `Host` header reveals a site that rebinds its own name to 127.0.0.1, and the `Origin` header reveals a page of
another site that tries to write. Browsers send both truthfully.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
TOKEN_COOKIE = "dualmoco-token"
COOKIE_SECONDS = 30 * 24 * 3600
OPEN_PATHS = ("/health",)  # need no token, so that a container can be monitored
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Default headers of every response."""


class Safety:
    """Middleware that refuses forbidden requests, and sends SECURITY_HEADERS.

    Args:
        app: Application that handles all other requests.
        token: Token that every request must carry; None on a server that only this machine can reach, where the `Host`
            is checked instead.
    """

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (self._refusal(scope) or self.app)(scope, receive, send_safely)

    def _refusal(self, scope: Scope) -> Response | None:
        """The response to a forbidden request, or None if it is allowed."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self.token is None and host_name(host) not in LOOPBACK_NAMES:
            return refuse(403, f"host {host!r:.100}; expected 127.0.0.1 or localhost")
        if scope["method"] not in SAFE_METHODS and not is_same_origin(headers):
            return refuse(403, "a page of another site may not change anything here; use the pages of this server")
        if self.token is None or scope["path"] in OPEN_PATHS:
            return None
        return self._check_token(scope, headers, self.token)

    def _check_token(self, scope: Scope, headers: Headers, token: str) -> Response | None:
        if any(hmac.compare_digest(given.encode(), token.encode()) for given in given_tokens(headers)):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        asked = dict(query).get("token")
        if asked and scope["method"] == "GET" and hmac.compare_digest(asked.encode(), token.encode()):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            answer = RedirectResponse(f"{scope['path']}?{rest}".rstrip("?"), 303)
            answer.set_cookie(TOKEN_COOKIE, token, httponly=True, samesite="strict", max_age=COOKIE_SECONDS)
            return answer
        return refuse(401, "no token; open the address that the server printed, or send Authorization: Bearer TOKEN")


def refuse(status: int, message: str) -> JSONResponse:
    """The response to a refused request."""
    kind = "AuthenticationError" if status == 401 else "RefusedError"
    error = {"message": message, "type": kind, "param": None, "code": None}
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": error}, status, headers)


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a request comes from a page of this server, or from a program that is not a browser."""
    origin = headers.get("origin")
    if origin is not None:  # without the scheme, because a proxy in front of the server may add TLS
        return origin.partition("://")[2] == headers.get("host")
    return headers.get("sec-fetch-site", "none") in ("same-origin", "none")


def host_name(host: str) -> str | None:
    """The name in a `Host` header, without the port; None if it cannot be read."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def given_tokens(headers: Mapping[str, str]) -> list[str]:
    """The tokens of a request, from its Authorization header and its cookie."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    found = [value.strip()] if kind.lower() == "bearer" else []
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(TOKEN_COOKIE)
    except CookieError:
        return found
    return [*found, cookie.value] if cookie else found

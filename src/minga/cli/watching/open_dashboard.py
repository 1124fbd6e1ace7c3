"""What `minga dashboard` and `minga host --dashboard` share: settings, and what is said about the addresses."""

from __future__ import annotations

from minga.cli.terminal.output import Output
from minga.core.errors import ConfigurationError
from minga.core.qr import code_of, in_terminal

try:
    from minga.dashboard.dashboard import Dashboard
    from minga.dashboard.settings import DEFAULT_PORT, DashboardSettings
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    raise ConfigurationError(
        f"the dashboard needs the package {package}: python -m pip install '.[dashboard]' in the source of minga"
    ) from error


def checked_settings(listen: str, *, public: bool, url: str | None) -> DashboardSettings:
    """The settings that the options say. Raises `ConfigurationError`."""
    return DashboardSettings.listening(listen, public=public, url=url)


def announce_dashboard(dashboard: Dashboard, output: Output, *, show_qr: bool = False) -> None:
    """Say where it is, for viewers, newcomers and the organiser."""
    settings = dashboard.settings
    output.event(
        "dashboard",
        url=dashboard.url,
        urls=dashboard.urls,
        join_url=dashboard.join_url,
        organiser_url=dashboard.organiser_url,
    )
    output.say(f"The dashboard: {dashboard.url}")
    for url in dashboard.urls[1:]:
        output.say(f"           or: {url}")
    if settings.is_local:
        output.say(f"Only this machine reaches it. For others, let it listen at 0.0.0.0:{DEFAULT_PORT}.")
    elif settings.public:
        output.say("Every person who reaches this address may look.")
    else:
        output.say("Viewers need this address with its token.")
    if dashboard.join_url is not None and not settings.is_local:
        output.say(f"Every person who reaches this address finds the link there, and can join: {dashboard.join_url}")
        if show_qr and output.interactive:
            output.console.file.write(in_terminal(code_of(dashboard.join_url)) + "\n")
    if dashboard.organiser_url is not None:
        output.say(f"For you as the organiser, with orders: {dashboard.organiser_url}")

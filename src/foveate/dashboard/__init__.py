"""One page, ``/dashboard``, that explains a slow request, and the JSON that it is drawn from.

:func:`foveate.dashboard.routes.install` adds both to an application. Everything the page needs is served from here: it asks nothing of any
other host, and its content security policy holds it to that.
"""

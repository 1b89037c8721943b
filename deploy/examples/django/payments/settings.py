import os
import urllib.parse

_url = urllib.parse.urlsplit(os.environ["DATABASE_URL"])

SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "nothing here is signed")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]  # the host of forward.url; another one is answered 400, which is a dead letter
ROOT_URLCONF = "payments.urls"
MIDDLEWARE = []  # CsrfViewMiddleware would answer 403: see csrf_exempt in urls.py where you have it
DATA_UPLOAD_MAX_MEMORY_SIZE = 16 << 20  # the default is 2.5 MB; a larger body is answered 400
DATABASES = {"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": _url.path[1:], "USER": urllib.parse.unquote(_url.username or ""),
    "PASSWORD": urllib.parse.unquote(_url.password or ""), "OPTIONS": dict(urllib.parse.parse_qsl(_url.query)),
    "HOST": _url.hostname, "PORT": _url.port or "", "CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}}
# ATOMIC_REQUESTS commits before the answer too; but then every error of complete must leave the view as an exception.

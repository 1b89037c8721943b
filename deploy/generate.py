"""Makes the files that follow from the program's tables. From the table of the stats and outbox lines: deploy/logs/onceward.mtail and
deploy/dashboards. From the schema of the configuration: that of the chart's values. From deploy/alerts: deploy/kubernetes/monitoring/rules.yaml.
From the configuration of the payments example: those of the examples that differ from it in a URL.

Helm's library repeats the component, and only Helm renders it. So --check also compares their lines.

    generate.py [--check]      --check: changes nothing; status 1 when a file is not what this makes"""

import argparse
import json
import os
import re
import sys

DEPLOY = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(DEPLOY, "../include/onceward/core/stats.def")
ENDINGS = {"VALUE": [""], "COUNT": ["", "_total"], "LATENCY": ["_p50", "_p99", "_max"], "BATCH": ["_p50", "_max"], "QUANTILES": ["_p50", "_p99"]}
TEXTS = {"state", "state_detail", "paused_reason", "paused_detail", "depth_reason", "limit_reason", "oldest_snapshot_reason", "holder", "error"}  # values in words


def fields(macro="STAT"):
    """Name, kind and sentence of each field of the stats line; OUTBOX: of the outbox line."""
    with open(TABLE) as f:
        found = re.findall(macro + r'\(\w+, "(\w+)", (\w+),\n\s+("(?:[^"\\]|\\.)*")', f.read(), re.M)
    return [(name, kind, json.loads(sentence)) for name, kind, sentence in found]


def states():
    with open(TABLE) as f:
        return re.findall(r'^STATE\(\w+, "(\w+)",', f.read(), re.M)


def keys(name, kind):
    return [name + ending for ending in ENDINGS[kind]]


# mtail

MTAIL = """\
# Metrics from Onceward's log (log.format onceward), for Prometheus:
#   mtail --progs onceward.mtail --logs '/var/log/pods/*/onceward/*.log' --expired_metrics_gc_interval 10s
# Made by deploy/generate.py from the table of the stats and outbox lines.
#
# Counters add up what each line says it grew by, so a restart does no harm. Gauges are those of the latest line, and gone where it says null.
# An idle sidecar says its figures once a minute: a gauge that is not said for three is forgotten (its state after one and a half, what is of the
# last interval after one), so a pod that is gone leaves no value behind; when it was heard last, and what it counted, are kept for a day. namespace and pod are taken from
# kubelet's file names, and are empty elsewhere. The outbox is no queue: it has its lines' time under an empty one.

{declarations}

getfilename() =~ /^\\/var\\/log\\/pods\\/(?P<namespace>[^_\\/]+)_(?P<pod>[^_\\/]+)_/ {{
  # kubelet's: the line stands behind time, stream and a flag
  /^[^{{]*\\{{"ts":"(?P<ts>\\d+-\\d+-\\d+T\\d+:\\d+:\\d+\\.\\d+)Z","level":"(?P<level>\\w+)","event":"(?P<event>\\w+)"/ {{
{in_pod}
  }}
}} else {{
  /^\\{{"ts":"(?P<ts>\\d+-\\d+-\\d+T\\d+:\\d+:\\d+\\.\\d+)Z","level":"(?P<level>\\w+)","event":"(?P<event>\\w+)"/ {{
{elsewhere}
  }}
}}
"""
GAUGE, STATE, INTERVAL, COUNTER = "3m", "90s", "1m", "24h"  # how long each is kept


def set_gauge(target, value, kept=GAUGE):
    return f"{target} = {value}\ndel {target} after {kept}"


def indented(text, by=2):
    return "\n".join(" " * by + line for line in text.split("\n"))


def mtail_field(name, kind, prefix, labels):
    """What is done with the keys of a field."""
    for key in keys(name, kind):
        if key.endswith("_total"):
            continue
        number, value = (r"-?\d+\.?\d*", "float($v)") if kind in ("LATENCY", "QUANTILES") else (r"-?\d+", "int($v)")
        condition = f'/"{key}":(?P<v>{number})/'
        if kind == "COUNT":
            target = f"{prefix}{name}_total{labels}"
            yield f"{condition} {{\n  {target} += {value}\n  del {target} after {COUNTER}\n}}"
        else:
            target = f"{prefix}{key}{labels}"
            yield f"{condition} {{\n{indented(set_gauge(target, value, GAUGE if kind == 'VALUE' else INTERVAL))}\n}} else {{\n  del {target}\n}}"


def mtail_statements(of_pod):
    """What is done with a line; of_pod: the labels namespace and pod."""
    labels = f"{of_pod}[$queue]"
    stats = [set_gauge(f"onceward_stats_seconds{labels}", "timestamp()", COUNTER)]
    stats += [set_gauge(f'onceward_state{labels}["{state}"]', "0", STATE) for state in states()]
    stats.append(f'/"state":"(?P<state>\\w+)"/ {{\n  onceward_state{labels}[$state] = 1\n}}')
    stats.append(set_gauge(f"onceward_database_down{labels}", "0", STATE))
    stats.append(f'/"paused_reason":"database_down"/ {{\n  onceward_database_down{labels} = 1\n}}')
    outbox = [set_gauge(f'onceward_stats_seconds{of_pod}[""]', "timestamp()", COUNTER), set_gauge(f"onceward_outbox_relaying{of_pod}", "0", STATE),
              f'/"state":"relaying"/ {{\n  onceward_outbox_relaying{of_pod} = 1\n}}']
    for lines, macro, prefix, by in (stats, "STAT", "onceward_", labels), (outbox, "OUTBOX", "onceward_outbox_", of_pod):
        for name, kind, _ in fields(macro):
            if name not in TEXTS:
                lines += mtail_field(name, kind, prefix, by)
    counted = f"onceward_lines_total{of_pod}[$event][$level]"
    return "\n".join(['strptime($ts, "2006-01-02T15:04:05.000")', f"{counted}++", f"del {counted} after {COUNTER}",
                      '/"event":"stats",.*"queue":"(?P<queue>[^"]+)"/ {', indented("\n".join(stats)), "}",
                      '/"event":"outbox",/ {', indented("\n".join(outbox)), "}"])


def mtail():
    declared = ["counter onceward_lines_total by namespace, pod, event, level", "gauge onceward_stats_seconds by namespace, pod, queue",
                "gauge onceward_state by namespace, pod, queue, state", "gauge onceward_database_down by namespace, pod, queue",
                "gauge onceward_outbox_relaying by namespace, pod"]
    for macro, prefix, by in ("STAT", "onceward_", "namespace, pod, queue"), ("OUTBOX", "onceward_outbox_", "namespace, pod"):
        for name, kind, _ in fields(macro):
            if name in TEXTS:
                continue
            if kind == "COUNT":
                declared.append(f"counter {prefix}{name}_total by {by}")
            else:
                declared += [f"gauge {prefix}{key} by {by}" for key in keys(name, kind)]
    return MTAIL.format(declarations="\n".join(declared), in_pod=indented(mtail_statements("[$namespace][$pod]"), 4),
                        elsewhere=indented(mtail_statements('[""][""]'), 4))


# The dashboards: Grafana, on Loki and on Prometheus.

PANELS = [  # title, unit, fields; a COUNT is shown as a rate
    ("Messages a second", "ops", ["received", "completed", "duplicates", "retried", "given_back", "dead", "unkeyed"]),
    ("In the broker's queue", "short", ["depth"]),
    ("Held here", "short", ["in_flight", "accepted", "limit", "batch_size", "parked", "held"]),
    ("The application's answers", "ms", ["forward_ms"]),
    ("From delivery to completion", "ms", ["end_to_end_ms"]),
    ("Paused for", "ms", ["paused_for_ms"]),
    ("Dead letters", "short", ["dead_letters"]),
    ("Oldest delivery that is held", "ms", ["oldest_unfinished_ms"]),
    ("Bytes", "bytes", ["held_bytes", "dead_letter_bytes"]),
    ("Oldest transaction of the database", "ms", ["oldest_snapshot_ms"]),
    ("Claims in a batch", "short", ["claim_batch"]),
    ("Reconnects, lines left out and dropped", "short", ["reconnects", "suppressed", "dropped_lines"]),
]


OUTBOX_PANELS = [
    ("The outbox: messages a second", "ops", ["published", "resent", "nacked", "letters"]),
    ("The outbox: age of the oldest that waits, and how long it takes", "ms", ["lag_ms", "relay_ms"]),
    ("The outbox: what waits, and dead letters", "short", ["waiting", "dead_letters"]),
    ("The outbox: bytes of its tables", "bytes", ["bytes"]),
    ("The outbox: since when its tables cannot be emptied", "ms", ["turn_waits_ms"]),
]
OF_QUEUES, OF_OUTBOXES = "namespace, queue", "namespace"  # one series each, however many pods: Loki answers with 500 at most


def lines(event, key):
    """The lines of figures with this field as a label: with all of them each line would be a series of its own."""
    if event == "outbox":
        return f'{{container="onceward", namespace=~"$namespace"}} | json event, {key} | event="outbox"'
    return f'{{container="onceward", namespace=~"$namespace"}} | json event, queue, {key} | event="stats" | queue=~"$queue"'


def query(event, by, key, kind):
    if kind == "COUNT":
        return f"sum by ({by}) (sum_over_time({lines(event, key)} | unwrap {key} | __error__=\"\" [$__interval])) / ($__interval_ms / 1000)"
    return f"max by ({by}) (max_over_time({lines(event, key)} | unwrap {key} | __error__=\"\" [$__interval]))"


def source(type_):
    return {"type": type_, "uid": "${source}"}


def panel(type_, number, title, kind, unit, targets, sentences):
    return {"id": number, "title": title, "type": kind, "datasource": source(type_), "description": " ".join(sentences),
            "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
            "fieldConfig": {"defaults": {"unit": unit, "custom": {"spanNulls": 120000}}, "overrides": []},
            "options": {"legend": {"displayMode": "list"}},
            "targets": [{"refId": chr(65 + i), "datasource": source(type_), "expr": expr, "legendFormat": legend,
                         **({"queryType": "range"} if type_ == "loki" else {"range": True})}
                        for i, (expr, legend) in enumerate(targets)]}


def selected(event):
    return '{namespace=~"$namespace"}' if event == "outbox" else '{namespace=~"$namespace", queue=~"$queue"}'


def metric_query(event, by, key, kind):
    """The same of a metrics page, or of mtail's metrics."""
    name = f"onceward_{'outbox_' if event == 'outbox' else ''}{key}"
    if kind == "COUNT":
        return f"sum by ({by}) (rate({name}_total{selected(event)}[$__rate_interval]))"
    return f"max by ({by}) ({name}{selected(event)})"


QUERY = {"loki": query, "prometheus": metric_query}


def figures_panels(type_, first, event, by, known, panels):
    """A panel of each row of `panels`, numbered from `first` on."""
    shown = {name for _, _, names in panels for name in names}
    left = [name for name in known if name not in TEXTS | shown]
    if shown - set(known):
        sys.exit(f"generate.py: {sorted(shown - set(known))} are shown, and no fields of the {event} line")
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    for number, (title, unit, names) in enumerate(panels + ([(f"Others of {event}", "short", left)] if left else []), first):
        targets = [(QUERY[type_](event, by, key, known[name][0]), f"{legend} {key}") for name in names for key in keys(name, known[name][0])
                   if not key.endswith("_total")]
        yield panel(type_, number, title, "timeseries", unit, targets, [f"{name}: {known[name][1]}" for name in names])


STATES = {"loki": f"count by (namespace, queue, state) (count_over_time({lines('stats', 'state')} [2m]))",
          "prometheus": f"sum by (namespace, queue, state) (onceward_state{selected('stats')}) > 0"}
NAMESPACES = {"loki": {"label": "namespace", "type": 1, "stream": '{container="onceward"}'}, "prometheus": "label_values(onceward_stats_seconds, namespace)"}


def loud_lines(type_, number):
    if type_ == "prometheus":
        expr = 'sum by (namespace, event, level) (rate(onceward_lines_total{namespace=~"$namespace", level=~"warning|error"}[$__rate_interval]))'
        return panel(type_, number, "Warnings and errors", "timeseries", "ops", [(expr, "{{namespace}} {{event}} {{level}}")], ["Lines of the log, by event."])
    loud = '{container="onceward", namespace=~"$namespace"} | json | level=~"warning|error"'
    return {"id": number, "title": "Warnings and errors", "type": "logs", "datasource": source(type_),
            "gridPos": {"h": 12, "w": 24, "x": 0, "y": 8 * (number // 2 + 1)}, "options": {"showTime": True, "wrapLogMessage": True},
            "targets": [{"refId": "A", "datasource": source(type_), "expr": loud, "queryType": "range"}]}


def dashboard(type_):
    of_stats, of_outbox = ({name: (kind, sentence) for name, kind, sentence in fields(macro)} for macro in ("STAT", "OUTBOX"))
    panels = [panel(type_, 0, "Pods in each state", "timeseries", "none", [(STATES[type_], "{{namespace}} {{queue}} {{state}}")],
                    [of_stats["state"][1], "Lines of two minutes: an idle queue says it once a minute."][:1 if type_ == "prometheus" else 2])]
    panels += figures_panels(type_, len(panels), "stats", OF_QUEUES, of_stats, PANELS)
    panels += figures_panels(type_, len(panels), "outbox", OF_OUTBOXES, of_outbox, OUTBOX_PANELS)
    panels.append(loud_lines(type_, len(panels)))
    variables = [
        {"name": "source", "type": "datasource", "query": type_, "label": type_.capitalize()},
        {"name": "namespace", "type": "query", "datasource": source(type_), "query": NAMESPACES[type_],
         "includeAll": True, "allValue": ".*", "multi": True, "current": {"text": "All", "value": "$__all"}, "refresh": 2},
        {"name": "queue", "type": "textbox", "query": ".+", "current": {"text": ".+", "value": ".+"}},
    ]
    name, uid = {"loki": ("Onceward", "onceward"), "prometheus": ("Onceward, metrics", "onceward-metrics")}[type_]
    made = {"title": name, "uid": uid, "schemaVersion": 39, "tags": ["onceward"], "timezone": "utc", "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"}, "templating": {"list": variables}, "panels": panels,
            "description": "Made by deploy/generate.py from the table of the stats and outbox lines."}
    return json.dumps(made, indent=1) + "\n"


# Helm: the values of the chart, with the configuration's own schema in it.

def without_prose(schema):
    """What decides, without the descriptions: conf/README.md has them."""
    if isinstance(schema, list):
        return [without_prose(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: {key: without_prose(value) for key, value in value.items()} if name in ("properties", "$defs") else without_prose(value)
            for name, value in schema.items() if name not in ("description", "title", "default", "examples")}


def values_schema():
    with open(os.path.join(DEPLOY, "../conf/onceward.schema.json")) as f:
        config = json.load(f)
    config = without_prose(config)
    config.pop("$schema", None)
    identity = config.pop("$id", None)
    definitions = {name: config.pop(name) for name in ("$defs", "definitions") if name in config}
    name = {"type": "string", "minLength": 1}
    digest = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
    sidecar = {"type": "object", "required": ["image", "config"], "additionalProperties": False, "properties": {
        "image": name, "digest": digest, "ready": {"enum": ["", "consuming"]}, "files": {"type": "array", "items": {"type": "object"}}, "graceSeconds": {"type": "integer", "minimum": 0}, "resources": {"type": "object"},
        "securityContext": {"type": "object"}, "secrets": {"type": "object", "additionalProperties": False, "properties": {k: name for k in ("rabbitmq", "postgresql", "owner")}},
        "config": config, "global": {"type": "object"}}}  # Helm itself puts it there: a library of that name is included
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"Values: an application with its sidecar ({identity or 'onceward'})",
            **definitions, "type": "object", "required": ["image", "databaseSecret", "onceward"], "additionalProperties": False, "properties": {
                "image": name, "replicas": {"type": "integer", "minimum": 0}, "port": {"type": "integer", "minimum": 1, "maximum": 65535},
                "migrate": {"type": "boolean"}, "testSeconds": {"type": "integer", "minimum": 1}, "databaseSecret": name, "digest": digest, "serviceAccountName": {"type": "string"}, "priorityClassName": {"type": "string"},
                **{key: {"type": "array"} for key in ("imagePullSecrets", "tolerations", "topologySpreadConstraints", "env")},
                **{key: {"type": "object"} for key in (
                    "podLabels", "podAnnotations", "nodeSelector", "affinity", "strategy", "startupProbe", "readinessProbe", "livenessProbe",
                    "resources", "podSecurityContext", "securityContext")},
                "networkPolicy": {"type": "object", "additionalProperties": False, "properties": {
                    "ingress": {"type": "array"}, "egress": {"type": "array"}}},
                "onceward": sidecar, "global": {"type": "object"}}}
    return json.dumps(made, indent=1) + "\n"


# The Prometheus operator: the rules of deploy/alerts as its object.

def prometheus_rule():
    text = """\
# For the Prometheus operator. Made by deploy/generate.py from deploy/alerts/prometheus.yaml and deploy/alerts/kubernetes.yaml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: onceward, namespace: monitoring}
spec:
  groups:
"""
    for name in "prometheus.yaml", "kubernetes.yaml":
        with open(os.path.join(DEPLOY, "alerts", name)) as f:
            text += indented(f.read().split("\ngroups:\n")[1].rstrip("\n")) + "\n"
    return text


# The configurations of examples. Kustomize can replace a file of a ConfigMap, but no line of it.

EXAMPLES = {
    "unix-socket": [('"http://127.0.0.1:8080/payments"', '"http://localhost/payments", "unix_socket": "/run/app/http.sock"')],
    "operators": [("amqps://rabbitmq.messaging.svc:5671/", "amqp://rabbitmq.messaging.svc:5672/"), ("@postgresql.databases.svc:", "@postgresql-rw:")],
}


def example_configuration(name):
    with open(os.path.join(DEPLOY, "kubernetes/examples/payments/onceward.json")) as f:
        text = f.read()
    for before, after in EXAMPLES[name]:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


# The chart's library repeats the component's lines; values of the chart stand in others.

REPEATED = {"kubernetes/component/sidecar.yaml": "initContainers:", "kubernetes/migrate/migrate.yaml": "spec:", "kubernetes/component/ready.yaml": "- {op"}
OF_VALUES = ("image: ", "resources: ", "{name: DATABASE_USER", "configMap: ", "secret: ", "{op: add")


def significant(text):
    """The lines without comments and indentation; neither a list's own mark nor a line that only opens a level."""
    for line in text.split("\n"):
        line = re.sub(r"(^|\s)#.*", "", line).strip().removeprefix("- ")
        if line and not line.endswith(":"):
            yield line


def not_in_the_chart():
    """Lines of the component that the library does not have."""
    with open(os.path.join(DEPLOY, "helm/onceward/templates/_onceward.tpl")) as f:
        known = set(significant(f.read()))
    for path, first in REPEATED.items():
        with open(os.path.join(DEPLOY, path)) as f:
            text = f.read()
        text = text[text.index(first):].replace("value: {exec: {command: [/usr/bin/onceward, health, --consuming]},\n    periodSeconds: 2, timeoutSeconds: 5}}",
                                                "\nreadinessProbe: {exec: {command: [/usr/bin/onceward, health, --consuming]}, periodSeconds: 2, timeoutSeconds: 5}")
        yield from (f"{path}: {line}" for line in significant(text) if line not in known and not line.startswith(OF_VALUES))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    status = 0
    for path, text in (("logs/onceward.mtail", mtail()), ("dashboards/onceward.json", dashboard("loki")),
                       ("dashboards/onceward-metrics.json", dashboard("prometheus")), ("kubernetes/monitoring/rules.yaml", prometheus_rule()),
                       ("helm/service/values.schema.json", values_schema()),
                       *((f"kubernetes/examples/{name}/onceward.json", example_configuration(name)) for name in EXAMPLES)):
        full = os.path.join(DEPLOY, path)
        if options.check:
            with open(full) as f:
                if f.read() != text:
                    print(f"deploy/{path} is not what deploy/generate.py makes: run it", file=sys.stderr)
                    status = 1
        else:
            with open(full, "w") as f:
                f.write(text)
    if options.check:
        for line in not_in_the_chart():
            print(f"deploy/{line}: deploy/helm/onceward/templates/_onceward.tpl has no such line", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())

"""A receiver of OTLP over HTTP, made of the messages that the OpenTelemetry project generates.

usage: receiver.py FILE      prints its port; appends each span, metric and event to FILE as one line of JSON, until its input ends
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces


def main(path):
    lock = threading.Lock()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.headers["Content-Type"] == "application/x-protobuf", self.headers
            if self.path == "/v1/traces":
                told = spans(traces.ExportTraceServiceRequest.FromString(body))
                answer = traces.ExportTraceServiceResponse()
            elif self.path == "/v1/logs":
                told = events(logs.ExportLogsServiceRequest.FromString(body))
                answer = logs.ExportLogsServiceResponse()
            else:
                assert self.path == "/v1/metrics", self.path
                told = measurements(metrics.ExportMetricsServiceRequest.FromString(body))
                answer = metrics.ExportMetricsServiceResponse()
            with lock, open(path, "a", encoding="utf-8") as file:
                for line in told:
                    print(json.dumps(line), file=file)
            answer = answer.SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


def names(attributes):
    return [attribute.key for attribute in attributes]


def of(resource, scope):
    """What all that is told together has."""
    by_name = {a.key: a.value.string_value for a in resource.resource.attributes}
    return {
        "service": by_name["service.name"],
        "resource": names(resource.resource.attributes),
        "schemas": [url for url in (resource.schema_url, scope.schema_url) if url],
    }


def spans(request):
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield of(resource, scope) | {
                    "trace": span.trace_id.hex(),
                    "id": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "name": span.name,
                    "start": span.start_time_unix_nano,
                    "end": span.end_time_unix_nano,
                    "attributes": names(span.attributes),
                }


def events(request):
    """Records that have a name; lines of a log have the fields that they have."""
    for resource in request.resource_logs:
        for scope in resource.scope_logs:
            for record in scope.log_records:
                if record.event_name:
                    yield of(resource, scope) | {
                        "event": record.event_name,
                        "trace": record.trace_id.hex(),
                        "id": record.span_id.hex(),
                        "attributes": names(record.attributes),
                    }


def measurements(request):
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = getattr(metric, metric.WhichOneof("data")).data_points
                yield of(resource, scope) | {
                    "metric": metric.name,
                    "attributes": sorted({name for point in points for name in names(point.attributes)}),
                }


if __name__ == "__main__":
    main(sys.argv[1])

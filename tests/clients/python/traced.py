"""A caller, and a command, that trace themselves with the SDK of the OpenTelemetry project.

usage: traced.py call unix:PATH      spawns itself as a command in a span of its own; prints the trace's id
       traced.py work                tells a span under the one that its environment names
"""

import os
import sys

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

TIMEOUT = 60


def tracer(name):
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer(name)


def work():
    # As the rules for environment variables as carriers say: the names in upper case.
    carrier = {name.lower(): value for name, value in os.environ.items() if name in ("TRACEPARENT", "TRACESTATE")}
    with tracer("command").start_as_current_span("work", context=propagate.extract(carrier)):
        print("worked", flush=True)


def call(address):
    import grpc
    from kennel.v1 import process_service_pb2 as api
    from kennel.v1 import process_service_pb2_grpc as service
    from kennel.v1 import run_pb2 as run

    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(address, options=options) as channel:
        kennel = service.ProcessServiceStub(channel)
        endpoint = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
        env = run.Env(vars={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})
        argv = run.Argv(args=[sys.executable, os.path.abspath(__file__), "work"])
        with tracer("caller").start_as_current_span("turn") as span:
            carrier = {}
            propagate.inject(carrier)
            spawned = kennel.Spawn(
                api.SpawnRequest(spec=run.RunSpec(argv=argv, env=env)),
                metadata=list(carrier.items()),
                timeout=TIMEOUT,
            )
            waited = kennel.WaitRun(api.WaitRunRequest(run_id=spawned.run.run_id), timeout=TIMEOUT)
            assert waited.run.state == run.RUN_STATE_SUCCEEDED, waited
        print(trace.format_trace_id(span.get_span_context().trace_id))


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work()
    else:
        call(sys.argv[2])

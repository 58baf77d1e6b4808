"""Waits for a run on one connection, with the retry policy of a file or without any, and prints how the call ended."""

import sys

import grpc
from kennel.v1 import process_service_pb2 as api
from kennel.v1 import process_service_pb2_grpc as service
from kennel.v1 import run_pb2 as run

address, run_id, *policy = sys.argv[1:]
options = [("grpc.default_authority", "localhost")]
for path in policy:
    with open(path, encoding="utf-8") as file:
        options.append(("grpc.service_config", file.read()))
with grpc.insecure_channel(address, options=options) as channel:
    kennel = service.ProcessServiceStub(channel)
    kennel.GetRun(api.GetRunRequest(run_id=run_id), timeout=60)
    waiting = kennel.WaitRun.future(api.WaitRunRequest(run_id=run_id, condition=api.WAIT_CONDITION_ENDED), timeout=60)
    # Frames of one connection come in their order: this answer says that the server has the call before it.
    kennel.GetRun(api.GetRunRequest(run_id=run_id), timeout=60)
    print("waiting", flush=True)
    try:
        print(run.RunState.Name(waiting.result().run.state))
    except grpc.RpcError as error:
        print(error.code().name)

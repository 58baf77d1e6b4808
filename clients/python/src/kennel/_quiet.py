"""Loads gRPC without its log: this package logs nothing, and neither does what it is built on."""

import os
import sys

_NAME = "GRPC_VERBOSITY"

if "grpc" not in sys.modules and _NAME not in os.environ:
    os.environ[_NAME] = "NONE"
    try:
        import grpc as grpc
    finally:
        del os.environ[_NAME]

// Stubs of the contract: messages, enums and services, without any repeats.

export * from "./gen/kennel/v1/access_pb.js";
export * from "./gen/kennel/v1/admin_service_pb.js";
export * from "./gen/kennel/v1/audit_pb.js";
export * from "./gen/kennel/v1/audit_trail_pb.js";
export * from "./gen/kennel/v1/consumer_pb.js";
export * from "./gen/kennel/v1/event_pb.js";
export * from "./gen/kennel/v1/process_service_pb.js";
export * from "./gen/kennel/v1/run_pb.js";
export * from "./gen/kennel/v1/terminal_pb.js";

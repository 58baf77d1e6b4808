//! Generates the Rust form of the contract from `proto/`, without protoc.

use std::{env, error::Error, fs, path::PathBuf};

const FILES: [&str; 9] = [
    "kennel/v1/access.proto",
    "kennel/v1/audit.proto",
    "kennel/v1/audit_trail.proto",
    "kennel/v1/consumer.proto",
    "kennel/v1/run.proto",
    "kennel/v1/event.proto",
    "kennel/v1/terminal.proto",
    "kennel/v1/process_service.proto",
    "kennel/v1/admin_service.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    let proto = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo:rerun-if-changed={}", proto.display());

    let mut compiler = protox::Compiler::new([&proto])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(FILES)?;

    let descriptors = PathBuf::from(env::var("OUT_DIR")?).join("kennel.v1.binpb");
    fs::write(descriptors, compiler.encode_file_descriptor_set())?;

    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    tonic_prost_build::configure()
        .bytes(".")
        .btree_map(".")
        // Their form for logs is written by hand, without values.
        .skip_debug(["kennel.v1.Secret", "kennel.v1.RestartRequest"])
        // Rare and large: without this every event would take as much room.
        .boxed(".kennel.v1.Event.payload.snapshot")
        .boxed(".kennel.v1.AttachResponse.response.opened")
        .boxed(".kennel.v1.RunSpec.readiness")
        .boxed(".kennel.v1.Attempt.usage")
        .compile_fds_with_config(compiler.file_descriptor_set(), config)?;
    Ok(())
}

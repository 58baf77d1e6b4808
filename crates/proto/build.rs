//! Generates the Rust form of the contract from `proto/`, without protoc.

use protox::prost_reflect::{
    DescriptorPool, EnumDescriptor, EnumValueDescriptor, FieldDescriptor, Kind,
};
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

    let contract = |with_comments| {
        let mut compiler = protox::Compiler::new([&proto])?;
        compiler.include_imports(true);
        compiler.include_source_info(with_comments);
        compiler.open_files(FILES)?;
        Ok::<_, protox::Error>(compiler)
    };
    // Comments become those of the types. In the binary they would be 270 kB.
    let compiler = contract(true)?;

    let descriptors = PathBuf::from(env::var("OUT_DIR")?).join("kennel.v1.binpb");
    fs::write(descriptors, contract(false)?.encode_file_descriptor_set())?;

    let written = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(written.join("calls.rs"), calls(&compiler))?;
    let pool = compiler.descriptor_pool();
    fs::write(written.join("values.rs"), all_values(&pool))?;
    fs::write(written.join("fields.rs"), all_fields(&pool))?;

    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    tonic_prost_build::configure()
        .bytes(".")
        .btree_map(".")
        // Debug of these messages is written by hand, without values.
        .skip_debug(["kennel.v1.Secret", "kennel.v1.RestartRequest"])
        // Rare and large: unboxed, they would make every event as large.
        .boxed(".kennel.v1.Event.payload.snapshot")
        .boxed(".kennel.v1.AttachResponse.response.opened")
        .boxed(".kennel.v1.RunSpec.readiness")
        .boxed(".kennel.v1.Attempt.usage")
        .boxed(".kennel.v1.ForEachRunResponse.part.run")
        .boxed(".kennel.v1.RunOutcome.run")
        .compile_fds_with_config(compiler.file_descriptor_set(), config)?;
    Ok(())
}

/// Returns what each RPC with one request and one answer is, for `src/call.rs`.
fn calls(compiler: &protox::Compiler) -> String {
    let mut calls = Vec::new();
    for service in compiler.descriptor_pool().services() {
        for method in service.methods() {
            if method.is_client_streaming() || method.is_server_streaming() {
                continue;
            }
            let options = method.method_descriptor_proto().options.clone();
            let level = options.unwrap_or_default().idempotency_level();
            let has_request_id = method.input().get_field_by_name("request_id").is_some();
            let id = id(method.name(), has_request_id);
            let repeats = match level.as_str_name() {
                "IDEMPOTENCY_UNKNOWN" => format!("MayRepeat::by_id({id})"),
                _ => "MayRepeat::AtWill".to_owned(),
            };
            let call = format!(
                "impl Call for pb::{} {{ type Answer = pb::{}; const PATH: &'static str = \"/{}/{}\"; \
                 fn repeats(&self) -> MayRepeat {{ {repeats} }} }}\n",
                method.input().name(),
                method.output().name(),
                service.full_name(),
                method.name()
            );
            calls.push(call);
        }
    }
    calls.push(rpcs(compiler));
    calls.concat()
}

/// Returns what each request is answered, and the field by which it names its run, for `src/call.rs`: all but Spawn take
/// a name there.
fn rpcs(compiler: &protox::Compiler) -> String {
    let methods = compiler.descriptor_pool();
    let methods = methods
        .services()
        .flat_map(|service| service.methods().collect::<Vec<_>>());
    let requests = methods.map(|method| {
        let request = method.input();
        let has_run = request.get_field_by_name("run_id").is_some() && method.name() != "Spawn";
        let run = if has_run { "Some(&mut self.run_id)" } else { "None" };
        let answer = format!("pb::{}", method.output().name());
        let answer = if method.is_server_streaming() {
            format!("tonic::codegen::BoxStream<{answer}>")
        } else {
            answer
        };
        let has_request_id = request.get_field_by_name("request_id").is_some();
        let id = if has_request_id { "Some(&self.request_id)" } else { "None" };
        let name = request.name();
        format!(
            "impl Rpc for pb::{name} {{ type Answer = {answer}; \
             fn run(&mut self) -> Option<&mut String> {{ {run} }} fn request_id(&self) -> Option<&str> {{ {id} }} }}\n"
        )
    });
    requests.collect()
}

/// Returns whether a request has what makes its repeats one call, as the comment of its RPC says.
fn id(method: &str, has_request_id: bool) -> &'static str {
    match method {
        "Spawn" => "!self.run_id.is_empty() || !self.request_key.is_empty()",
        "Restart" => "self.expected_attempt.is_some() && !self.new_run_id.is_empty()",
        "WriteInput" => "!self.write_id.is_empty() || self.offset.is_some()",
        _ if has_request_id => "!self.request_id.is_empty()",
        _ => "false",
    }
}

/// Returns the values of the enums of the contract, for `src/names.rs`, so that no command decodes descriptors for those
/// of its flags. An enum is named itself, or by the path of its field in `RunSpec`.
fn all_values(pool: &DescriptorPool) -> String {
    let spec = fields(pool, "kennel.v1.RunSpec");
    let arm = |of: EnumDescriptor| {
        let of_it = spec
            .iter()
            .filter(|(_, field)| field.kind().as_enum() == Some(&of));
        let names = of_it.map(|(path, _)| format!(" | {path:?}"));
        let names = names.collect::<String>();
        format!(
            "{:?}{names} => &[{}],\n",
            of.full_name(),
            values(&of).concat()
        )
    };
    let ours = pool
        .all_enums()
        .filter(|of| of.full_name().starts_with("kennel.v1."));
    let arms: String = ours.map(arm).collect();
    format!("match name {{\n{arms}_ => &[],\n}}")
}

/// Returns the fields of the messages whose fields commands name, for `src/names.rs`.
fn all_fields(pool: &DescriptorPool) -> String {
    let arm = |message: &str| {
        let fields = fields(pool, message).into_iter();
        let fields = fields.map(|(path, field)| {
            let is_text = matches!(field.kind(), Kind::String) && !field.is_list();
            format!("({path:?}, {is_text}),")
        });
        format!("{message:?} => &[{}],\n", fields.collect::<String>())
    };
    let messages = ["RunSpec", "Run", "Attempt", "Lifecycle"];
    let arms = messages.map(|message| arm(&format!("kennel.v1.{message}")));
    format!("match message {{\n{}_ => &[],\n}}", arms.concat())
}

/// Returns the fields of a message and of its messages by their paths, such as `stop.grace`.
fn fields(pool: &DescriptorPool, message: &str) -> Vec<(String, FieldDescriptor)> {
    let message = pool
        .get_message_by_name(message)
        .expect("it is of the contract");
    let mut found = Vec::new();
    for field in message.fields() {
        let name = field.name().to_owned();
        if let Some(below) = field.kind().as_message().filter(|_| !field.is_list()) {
            let below = fields(pool, below.full_name()).into_iter();
            found.extend(below.map(|(path, field)| (format!("{name}.{path}"), field)));
        }
        found.push((name, field));
    }
    found
}

/// Returns the values of an enum but the unspecified one, each with the first sentence of its comment.
fn values(of: &EnumDescriptor) -> Vec<String> {
    let unspecified = of.default_value().name().to_owned();
    let prefix = unspecified.trim_end_matches("UNSPECIFIED");
    let file = of.parent_file().file_descriptor_proto().clone();
    let comments = file.source_code_info.unwrap_or_default().location;
    let help = |path: &[i32]| {
        let comment = comments.iter().find(|comment| comment.path == path);
        let comment = comment.map_or("", |comment| comment.leading_comments());
        let words: Vec<&str> = comment.split_whitespace().collect();
        let text = words.join(" ");
        let sentence = text.split(". ").next().unwrap_or_default();
        sentence.trim_end_matches('.').to_owned()
    };
    let specified = of.values().filter(|value| value.name() != unspecified);
    let value = |value: EnumValueDescriptor| {
        let short = value.name().trim_start_matches(prefix).to_lowercase();
        format!(
            "EnumValue {{ name: {:?}, short: {:?}, help: {:?} }},",
            value.name(),
            short.replace('_', "-"),
            help(value.path())
        )
    };
    specified.map(value).collect()
}

//! The contract as other languages generate it: options, names that a language cannot use, and the retry policy.

use kennel_tests::programs::repository;
use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};
use serde_json::Value;
use std::fs;

/// Names for which some language cannot generate code for a field: keywords of Python, which has no other way to name
/// an attribute, and macros of C, which C++ replaces in a method's name.
const UNUSABLE: &str = "and as assert async await break class continue def del elif else except finally for from global \
    if import in is lambda nonlocal not or pass raise return try while with yield None True False \
    errno stdin stdout stderr linux unix major minor makedev NULL EOF";

fn image() -> Vec<FileDescriptorProto> {
    let bytes = fs::read(repository().join("proto/kennel.v1.binpb")).expect("the image is there");
    let set = FileDescriptorSet::decode(&bytes[..]).expect("it is an image");
    let own = |file: &FileDescriptorProto| file.package() == "kennel.v1";
    set.file.into_iter().filter(own).collect()
}

/// Returns the names of the fields and oneofs of a message and those in it.
fn field_names(message: &DescriptorProto) -> Vec<String> {
    let fields = message.field.iter().map(|field| field.name().to_owned());
    let oneofs = message.oneof_decl.iter().map(|one| one.name().to_owned());
    let nested = message.nested_type.iter().flat_map(field_names);
    fields.chain(oneofs).chain(nested).collect()
}

/// Returns names that some language cannot use.
fn unusable(messages: &[DescriptorProto]) -> Vec<String> {
    let names = messages.iter().flat_map(field_names);
    let is_unusable = |name: &String| UNUSABLE.split_whitespace().any(|word| word == name);
    names.filter(is_unusable).collect()
}

// promise: O-44
#[test]
fn each_file_names_its_package_in_each_language() {
    let files = image();
    assert_eq!(files.len(), 9);
    let messages: Vec<&str> = files
        .iter()
        .flat_map(|f| &f.message_type)
        .map(DescriptorProto::name)
        .collect();
    for file in &files {
        let options = file.options.as_ref().expect("it has options");
        assert_eq!(options.go_package(), "kennel/v1;kennelv1");
        assert_eq!(options.java_package(), "com.kennel.v1");
        assert!(options.java_multiple_files());
        assert_eq!(options.csharp_namespace(), "Kennel.V1");
        assert_eq!(options.ruby_package(), "Kennel::V1");
        assert_eq!(options.php_namespace(), "Kennel\\V1");
        let outer = options.java_outer_classname();
        assert!(
            outer.ends_with("Proto") && !messages.contains(&outer),
            "{outer}"
        );
    }
}

// promise: O-44
#[test]
fn no_field_has_a_reserved_name() {
    for file in image() {
        assert_eq!(unusable(&file.message_type), [""; 0], "{}", file.name());
    }
    let planted = DescriptorProto {
        nested_type: vec![DescriptorProto {
            field: vec![prost_types::FieldDescriptorProto {
                name: Some("errno".to_owned()),
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    assert_eq!(unusable(&[planted]), ["errno"]);
}

// promise: O-45
#[test]
fn retry_policy_names_rpcs_that_exist() {
    let text = fs::read_to_string(repository().join("proto/service_config.json"));
    let config: Value = serde_json::from_str(&text.expect("it is there")).expect("it is JSON");
    let services: Vec<_> = image().into_iter().flat_map(|file| file.service).collect();
    let methods = config["methodConfig"].as_array().expect("a list");
    for name in methods
        .iter()
        .flat_map(|m| m["name"].as_array().expect("names"))
    {
        let service = name["service"].as_str().expect("a service");
        let service = services
            .iter()
            .find(|known| service == format!("kennel.v1.{}", known.name()))
            .unwrap_or_else(|| panic!("there is no {service}"));
        if let Some(method) = name["method"].as_str() {
            assert!(
                service.method.iter().any(|known| known.name() == method),
                "no {method}"
            );
        }
    }
    let without = &methods[1];
    assert!(
        without["retryPolicy"].is_null(),
        "it is for those that may not be repeated"
    );
}

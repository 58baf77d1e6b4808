//! Names in the contract as people write them: values of enums, and paths of fields. Nothing is decoded for them.

/// A value of an enum.
#[derive(Clone, Copy, Debug)]
pub struct EnumValue {
    /// Name in the contract.
    pub name: &'static str,
    /// The same without prefix, in lower case with dashes.
    pub short: &'static str,
    /// The first sentence of its comment.
    pub help: &'static str,
}

/// Returns the values but the unspecified one of an enum, by its name or the path of its field in `RunSpec`.
pub fn values(name: &str) -> &'static [EnumValue] {
    include!(concat!(env!("OUT_DIR"), "/values.rs"))
}

/// Returns the paths of all fields of a message and of its messages, such as `stop.grace`, each with whether it is one
/// text.
pub fn fields(message: &str) -> &'static [(&'static str, bool)] {
    include!(concat!(env!("OUT_DIR"), "/fields.rs"))
}

//! The name of each value, defined once: as it is in SQL, JSON, metrics and spans, in capitals in the contract and in
//! logs.

/// A name that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {of} {name:?}")]
pub struct UnknownName {
    /// The type that has no such value.
    pub of: &'static str,
    /// The name that was read.
    pub name: String,
}

/// Returns the ASCII text in capitals.
#[doc(hidden)]
pub const fn capitals<const LEN: usize>(text: &str) -> [u8; LEN] {
    let bytes = text.as_bytes();
    let mut upper = [0; LEN];
    let mut at = 0;
    while at < LEN {
        upper[at] = bytes[at].to_ascii_uppercase();
        at += 1;
    }
    upper
}

/// Returns the text of these bytes, which are ASCII.
#[doc(hidden)]
pub const fn text(bytes: &'static [u8]) -> &'static str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => panic!("a name is ASCII"),
    }
}

/// An enum without data, with the name of each value.
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* pub enum $kind:ident {
        $($(#[$of_variant:meta])* $variant:ident = $name:literal),+ $(,)?
    }) => {
        $(#[$meta])*
        #[derive(serde::Serialize, serde::Deserialize)]
        pub enum $kind {
            $($(#[$of_variant])* #[serde(rename = $name)] $variant,)+
        }

        impl $kind {
            /// All values, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns its name in SQL, JSON, metrics and spans.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Returns its name in the contract, without prefix, and in logs.
            pub const fn api_name(self) -> &'static str {
                match self {
                    $(Self::$variant => {
                        const CAPITALS: [u8; $name.len()] = $crate::names::capitals($name);
                        $crate::names::text(&CAPITALS)
                    })+
                }
            }
        }

        impl std::str::FromStr for $kind {
            type Err = $crate::UnknownName;

            fn from_str(text: &str) -> Result<Self, $crate::UnknownName> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    _ => Err($crate::UnknownName {
                        of: stringify!($kind),
                        name: text.to_owned(),
                    }),
                }
            }
        }
    };
}
pub(crate) use named;

/// An enum whose values have names.
pub trait Tagged {
    /// All names, in order.
    const NAMES: &[&str];

    /// Returns the name of this value.
    fn name(&self) -> &'static str;
}

/// An enum whose values may have data, with the name of each: its tag in JSON.
#[macro_export]
macro_rules! tagged {
    ($(#[$meta:meta])* $vis:vis enum $kind:ident {
        $(
            $(#[$of_variant:meta])*
            $variant:ident $(($($tuple:tt)*))? $({ $($fields:tt)* })? = $name:literal
        ),+ $(,)?
    }) => {
        $(#[$meta])*
        #[derive(serde::Serialize, serde::Deserialize)]
        $vis enum $kind {
            $(
                $(#[$of_variant])*
                #[serde(rename = $name)]
                $variant $(($($tuple)*))? $({ $($fields)* })?,
            )+
        }

        impl $kind {
            /// Returns its name in SQL, JSON, metrics and spans.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $name,)+
                }
            }
        }

        impl $crate::Tagged for $kind {
            const NAMES: &[&str] = &[$($name,)+];

            fn name(&self) -> &'static str {
                self.name()
            }
        }
    };
}
pub(crate) use tagged;

/// A struct of which no field with its type's default is written: one that a later version adds changes no text of a
/// value that does not use it.
macro_rules! sparse {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$of_field:meta])* pub $field:ident: $type:ty),+ $(,)?
    }) => {
        $(#[$meta])*
        #[derive(serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[$of_field])* #[serde(skip_serializing_if = "crate::is_default")] pub $field: $type,)+
        }
    };
}
pub(crate) use sparse;

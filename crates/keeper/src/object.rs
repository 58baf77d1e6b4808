//! For serde: a kind without a value, or with one that has no fields, as an object. Only objects can grow: a later
//! version adds a field, and this one passes over it.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A kind without a value: `{}`.
pub(crate) mod empty {
    use super::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Empty {}

    pub(crate) fn serialize<S: Serializer>(to: S) -> Result<S::Ok, S::Error> {
        Empty {}.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<(), D::Error> {
        Empty::deserialize(from).map(|Empty {}| ())
    }
}

/// A kind with one value, under this name.
macro_rules! object {
    ($($name:ident),+) => {$(
        pub(crate) mod $name {
            use super::{Deserialize, Deserializer, Serialize, Serializer};

            pub(crate) fn serialize<T: Serialize, S: Serializer>(
                value: &T,
                to: S,
            ) -> Result<S::Ok, S::Error> {
                #[derive(Serialize)]
                struct Object<'a, T> {
                    $name: &'a T,
                }
                Object { $name: value }.serialize(to)
            }

            pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
                from: D,
            ) -> Result<T, D::Error> {
                #[derive(Deserialize)]
                struct Object<T> {
                    $name: T,
                }
                Object::deserialize(from).map(|object| object.$name)
            }
        }
    )+};
}

object!(
    exit, index, notice, reason, refusal, result, seen, targets, tree, way, why, end
);

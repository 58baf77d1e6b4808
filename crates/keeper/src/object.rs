//! For serde: a kind with one value that has no fields, as an object. Only objects can grow: a later version adds a
//! field, and this one passes over it.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

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

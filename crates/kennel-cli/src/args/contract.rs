//! Values of flags that are values of the contract.

/// Defines enums of values of flags, each with its conversion to the value of the same name in the contract.
macro_rules! of_contract {
    ($(
        $(#[$meta:meta])*
        pub(crate) enum $arg:ident = $contract:ident {
            $($(#[$of_value:meta])* $value:ident,)+
        }
    )+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
        pub(crate) enum $arg {
            $($(#[$of_value])* $value,)+
        }

        impl From<$arg> for kennel_proto::pb::$contract {
            fn from(arg: $arg) -> Self {
                match arg {
                    $($arg::$value => Self::$value,)+
                }
            }
        }
    )+};
}

//! The table through which the functions of `libibverbs.so.1` and `libefa.so.1` jump that
//! [`efa_soft_names::libraries`] writes.

/// Declares the functions, of whatever type, and the table of their addresses.
macro_rules! table {
    (ibverbs { $($ibverbs:tt)* } efa { $($efa:tt)* }) => {
        table! { @ $($ibverbs)* $($efa)* }
    };
    (@ $($version:literal: $($name:ident)*;)*) => {
        #[allow(clashing_extern_declarations, reason = "only the addresses are used")]
        mod functions {
            // SAFETY: each is defined in this crate; none is called by these declarations.
            unsafe extern "C" {
                $($(pub(super) fn $name();)*)*
            }
        }

        /// Pointers to the functions, in the order of [`efa_soft_names::functions!`].
        #[unsafe(no_mangle)]
        static efa_soft_functions_1: [unsafe extern "C" fn(); COUNT] =
            [$($(functions::$name,)*)*];
        const COUNT: usize = [$($(stringify!($name),)*)*].len();
    };
}

efa_soft_names::functions!(table);

//! The types of a tensor's elements.

use std::fmt;
use std::str::FromStr;

/// Defines the types, their names, and the bits of an element.
macro_rules! dtypes {
    ($($variant:ident = $name:literal, $bits:literal, $doc:literal;)*) => {
        /// The type of a tensor's elements, by the name that safetensors has for it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Dtype {
            $(#[doc = $doc] $variant,)*
        }

        impl Dtype {
            /// All types.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name in a header.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The bits of an element.
            #[must_use]
            pub const fn bits(self) -> u64 {
                match self { $(Self::$variant => $bits,)* }
            }
        }
    };
}

dtypes! {
    Bool = "BOOL", 8, "A byte, 0 or 1.";
    F4 = "F4", 4, "E2M1, packed.";
    F6E2M3 = "F6_E2M3", 6, "E2M3, packed.";
    F6E3M2 = "F6_E3M2", 6, "E3M2, packed.";
    U8 = "U8", 8, "Unsigned, 8 bits.";
    I8 = "I8", 8, "Signed, 8 bits.";
    F8E5M2 = "F8_E5M2", 8, "E5M2.";
    F8E4M3 = "F8_E4M3", 8, "E4M3, without infinities.";
    F8E8M0 = "F8_E8M0", 8, "An exponent of 8 bits.";
    F8E4M3Fnuz = "F8_E4M3FNUZ", 8, "E4M3, without infinities and negative zero.";
    F8E5M2Fnuz = "F8_E5M2FNUZ", 8, "E5M2, without infinities and negative zero.";
    I16 = "I16", 16, "Signed, 16 bits.";
    U16 = "U16", 16, "Unsigned, 16 bits.";
    F16 = "F16", 16, "IEEE, 16 bits.";
    Bf16 = "BF16", 16, "The upper half of an IEEE number of 32 bits.";
    I32 = "I32", 32, "Signed, 32 bits.";
    U32 = "U32", 32, "Unsigned, 32 bits.";
    F32 = "F32", 32, "IEEE, 32 bits.";
    C64 = "C64", 64, "A complex number of two `F32`.";
    F64 = "F64", 64, "IEEE, 64 bits.";
    I64 = "I64", 64, "Signed, 64 bits.";
    U64 = "U64", 64, "Unsigned, 64 bits.";
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = ();

    /// The type of a name in a header.
    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.iter().copied().find(|dtype| dtype.name() == name).ok_or(())
    }
}

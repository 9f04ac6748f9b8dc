//! How fields are made of what an older type, or a text, had: `#[recoverable(...)]`.
//!
//! Invariant: an expression of the program's stands in a function of its own, which is safe, takes nothing and has
//! no other code in it: it can call nothing unsafe by being here, leave nothing half made, and name nothing of ours.
//! All of these functions have returned before the first field is made.

use crate::{member, place_of};
use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::{Error, Fields, Ident, Type};

/// What `#[recoverable(...)]` says of a type, a variant or a field.
#[derive(Default)]
pub(crate) struct Said {
    /// Names that it had, after the one that it has.
    pub names: Vec<String>,
    default: Option<TokenStream>,
    /// Parts that it had, and that may be lost.
    pub gone: Vec<String>,
}

/// What it is said of.
#[derive(Clone, Copy)]
pub(crate) enum Of<'t> {
    Type,
    Variant,
    Field(&'t Type),
}

impl Said {
    pub fn of(name: &str, attributes: &[syn::Attribute], of: Of<'_>) -> Result<Said, Error> {
        let mut said = Said { names: vec![name.to_owned()], ..Said::default() };
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("recoverable")) {
            attribute.parse_nested_meta(|meta| {
                match of {
                    Of::Variant | Of::Field(_) if meta.path.is_ident("was") => {
                        said.names.push(meta.value()?.parse::<syn::LitStr>()?.value());
                    }
                    Of::Type | Of::Variant if meta.path.is_ident("gone") => {
                        let names;
                        syn::parenthesized!(names in meta.input);
                        let names = names.parse_terminated(<syn::LitStr as syn::parse::Parse>::parse, syn::Token![,])?;
                        said.gone.extend(names.iter().map(syn::LitStr::value));
                    }
                    Of::Field(of) if meta.path.is_ident("default") => {
                        said.default = Some(if meta.input.peek(syn::Token![=]) {
                            let value: syn::Expr = meta.value()?.parse()?;
                            quote!(#value)
                        } else {
                            quote!(<#of as ::std::default::Default>::default())
                        });
                    }
                    _ => {
                        let text = "say `was = \"its old name\"` of a field or a variant; of a field, `default` or `default = an \
                                    expression`; of a type or a variant, `gone(\"a part that it had\")`";
                        return Err(meta.error(text));
                    }
                }
                Ok(())
            })?;
        }
        Ok(said)
    }

    /// What is told of a field when its type is described.
    pub fn of_field(&self) -> TokenStream {
        let (older, default) = (&self.names[1..], self.default.is_some());
        match older.is_empty() && !default {
            true => TokenStream::new(),
            false => quote!(definition.field_was(&[#(#older),*], #default);),
        }
    }

    /// What is told of the parts that are gone.
    pub fn of_gone(&self) -> TokenStream {
        let gone = &self.gone;
        if gone.is_empty() { TokenStream::new() } else { quote!(definition.gone(&[#(#gone),*]);) }
    }
}

/// Refuses names of which nobody could tell whose they are: each is that of one part, had by one, or gone.
pub(crate) fn distinct(parts: &[(&Said, &dyn quote::ToTokens)], gone: &[String]) -> Result<(), Error> {
    for (said, place) in parts {
        let others = || parts.iter().map(|(other, _)| *other).filter(|other| other.names[0] != said.names[0]);
        if let Some(taken) =
            said.names[1..].iter().find(|name| others().any(|other| other.names[0] == **name))
        {
            let text = format!(
                "{taken:?} is the name of a field or variant: objects cannot be told which of the two they had. Give that \
                 one another name, or migrate by a function"
            );
            return Err(Error::new_spanned(place, text));
        }
        if let Some(taken) =
            said.names[1..].iter().find(|name| others().any(|other| other.names.contains(name)))
        {
            return Err(Error::new_spanned(
                place,
                format!("two have had the name {taken:?}: only one can take it"),
            ));
        }
        if let Some(taken) = said.names.iter().find(|name| gone.contains(name)) {
            return Err(Error::new_spanned(
                place,
                format!("{taken:?} is said to be gone, and this takes it"),
            ));
        }
    }
    Ok(())
}

/// How the fields of a struct or a variant are made of data.
#[derive(Default)]
pub(crate) struct Loads {
    /// Functions of the type: the defaults that the program has said.
    pub defaults: TokenStream,
    /// Takes what each field is made of. Code of the program's runs here, and nothing unsafe.
    pub takes: TokenStream,
    /// Makes the fields in their places.
    pub makes: TokenStream,
}

/// Makes the fields, whose places are given, of `fields`. `suffix` tells a variant's functions from another's.
pub(crate) fn loads(
    of_what: &str,
    suffix: &str,
    fields: &Fields,
    places: &[TokenStream],
    gone: &[String],
) -> Result<Loads, Error> {
    let mut all = Loads::default();
    let said = said_of(fields)?;
    let parts = said.iter().zip(fields).map(|(said, field)| (said, &field.ty as &dyn quote::ToTokens));
    distinct(&parts.collect::<Vec<_>>(), gone)?;
    for (i, ((field, place), Said { names, default, .. })) in fields.iter().zip(places).zip(&said).enumerate()
    {
        let (of, value) = (&field.ty, format_ident!("__value{i}"));
        let Some(default) = default else {
            all.takes.extend(quote! {
                let #value = ::caliburn::typed::Loader::field(loader, #of_what, &mut fields, &[#(#names),*]);
            });
            all.makes.extend(quote_spanned! {place_of(of)=>
                <#of as ::caliburn::typed::Recoverable>::load(#value, #place, loader);
            });
            continue;
        };
        let function: Ident = format_ident!("__caliburn_default{suffix}_{i}");
        all.defaults.extend(quote_spanned! {place_of(of)=>
            #[doc(hidden)]
            fn #function<'caliburn>() -> impl ::caliburn::typed::Init<'caliburn, #of> {
                #default
            }
        });
        all.takes.extend(quote! {
            let #value = match ::caliburn::typed::Parts::take(&mut fields, &[#(#names),*]) {
                ::std::option::Option::Some(value) => ::std::result::Result::Ok(value),
                ::std::option::Option::None => ::std::result::Result::Err(Self::#function()),
            };
        });
        all.makes.extend(quote_spanned! {place_of(of)=>
            match #value {
                ::std::result::Result::Ok(value) => {
                    <#of as ::caliburn::typed::Recoverable>::load(value, #place, loader)
                }
                ::std::result::Result::Err(made) => {
                    ::caliburn::typed::Init::<#of>::init(made, #place, ::caliburn::typed::Loader::tx(loader))
                }
            }
        });
    }
    all.takes
        .extend(quote!(::caliburn::typed::Loader::nothing_left(loader, #of_what, fields, &[#(#gone),*]);));
    Ok(all)
}

/// What is said of each field.
pub(crate) fn said_of(fields: &Fields) -> Result<Vec<Said>, Error> {
    let said =
        |(i, field): (usize, &syn::Field)| Said::of(&member(i, field).1, &field.attrs, Of::Field(&field.ty));
    fields.iter().enumerate().map(said).collect()
}

/// The functions of a type's defaults, if there are some.
pub(crate) fn defaults_of(input: &syn::DeriveInput, defaults: &TokenStream) -> TokenStream {
    if defaults.is_empty() {
        return TokenStream::new();
    }
    let (name, generics) = (&input.ident, crate::bounded(&input.generics));
    let (impl_generics, type_generics, bounds) = generics.split_for_impl();
    quote! {
        #[automatically_derived]
        impl #impl_generics #name #type_generics #bounds {
            #defaults
        }
    }
}

//! How fields are made of what an older type, or a text, had: `#[recoverable(...)]`.

use crate::{member, place_of};
use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::{Error, Fields, Type};

/// What `#[recoverable(...)]` says of a field or a variant.
#[derive(Default)]
pub(crate) struct Said {
    /// Names that it had, after the one that it has.
    pub names: Vec<String>,
    default: Option<TokenStream>,
}

impl Said {
    pub fn of(name: &str, attributes: &[syn::Attribute], of: Option<&Type>) -> Result<Said, Error> {
        let mut said = Said { names: vec![name.to_owned()], default: None };
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("recoverable")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("was") {
                    said.names.push(meta.value()?.parse::<syn::LitStr>()?.value());
                    return Ok(());
                }
                let Some(of) = of.filter(|_| meta.path.is_ident("default")) else {
                    let text = "say `was = \"its old name\"`, or, of a field, `default` or `default = an expression`";
                    return Err(meta.error(text));
                };
                said.default = Some(if meta.input.peek(syn::Token![=]) {
                    let value: syn::Expr = meta.value()?.parse()?;
                    quote!(#value)
                } else {
                    quote!(<#of as ::std::default::Default>::default())
                });
                Ok(())
            })?;
        }
        Ok(said)
    }
}

/// Makes the fields, whose places are given, of `fields`.
pub(crate) fn loads(of_what: &str, fields: &Fields, places: &[TokenStream]) -> Result<TokenStream, Error> {
    let mut made = Vec::new();
    let present: Vec<String> = fields.iter().enumerate().map(|(i, field)| member(i, field).1).collect();
    for (i, (field, place)) in fields.iter().zip(places).enumerate() {
        let of = &field.ty;
        let Said { names, default } = Said::of(&present[i], &field.attrs, Some(of))?;
        if let Some(taken) = names[1..].iter().find(|name| present.contains(name)) {
            let text = format!(
                "{taken:?} is the name of a field: objects cannot be told which of the two they had. Give that field another name, or migrate by a function"
            );
            return Err(Error::new_spanned(&field.ty, text));
        }
        made.push(match default {
            None => quote_spanned! {place_of(of)=> {
                let value = loader.field(#of_what, &mut fields, &[#(#names),*]);
                <#of as ::caliburn::typed::Recoverable>::load(value, #place, loader);
            }},
            Some(default) => quote_spanned! {place_of(of)=> {
                match fields.take(&[#(#names),*]) {
                    ::std::option::Option::Some(value) => {
                        <#of as ::caliburn::typed::Recoverable>::load(value, #place, loader)
                    }
                    ::std::option::Option::None => {
                        ::caliburn::typed::Init::<#of>::init(#default, #place, loader.tx())
                    }
                }
            }},
        });
    }
    Ok(quote!(#(#made)*))
}

//! Enums with data, as `#[repr(u8)]` lays them out.

use crate::made::{Of, Said, defaults_of, distinct, loads, said_of};
use crate::{bounded, guard_generics, init_of_self, member, not_drop, parameters_of, pointers, unused};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{DataEnum, DeriveInput, Error, Fields, Ident, Type};

pub(crate) fn of_enum(input: &DeriveInput, data: &DataEnum, tag: &Ident) -> Result<TokenStream, Error> {
    let name = &input.ident;
    let generics = bounded(&input.generics);
    let (impl_generics, type_generics, bounds) = generics.split_for_impl();
    let types: Vec<&Type> =
        data.variants.iter().flat_map(|variant| &variant.fields).map(|field| &field.ty).collect();
    let pointers = pointers(types.iter().copied());
    let (base, parameters) = (name.to_string(), parameters_of(input));
    let what = format!("enum {tag}");
    // The language's own, whatever the program calls by that name.
    let tag = &quote!(::std::primitive::#tag);
    let type_parameters: Vec<&Ident> =
        input.generics.type_params().map(|parameter| &parameter.ident).collect();
    // What #[repr(u8)] lays out for each variant (RFC 2195): the tag, then the fields.
    let layouts = data.variants.iter().map(|variant| {
        let (layout, types) = (layout_of(variant), variant.fields.iter().map(|field| &field.ty));
        quote! {
            #[repr(C)]
            #[allow(dead_code)]
            struct #layout #impl_generics (#tag, #(#types,)* ::std::marker::PhantomData<(#(#type_parameters,)*)>) #bounds;
        }
    });
    let (mut describes, mut stores, mut moves, mut frees, mut made) =
        (vec![], vec![], vec![], vec![], vec![]);
    let mut defaults = TokenStream::new();
    let gone = Said::of(&base, &input.attrs, Of::Type)?;
    let said = |variant: &syn::Variant| Said::of(&variant.ident.to_string(), &variant.attrs, Of::Variant);
    let said: Vec<Said> = data.variants.iter().map(said).collect::<Result<_, Error>>()?;
    let parts =
        said.iter().zip(&data.variants).map(|(said, variant)| (said, &variant.ident as &dyn quote::ToTokens));
    distinct(&parts.collect::<Vec<_>>(), &gone.gone)?;
    describes.push(gone.of_gone());
    for (number, variant) in data.variants.iter().enumerate() {
        let (ident, text, layout) = (&variant.ident, variant.ident.to_string(), layout_of(variant));
        let bindings: Vec<Ident> = (0..variant.fields.len()).map(|i| format_ident!("__field{i}")).collect();
        let of: Vec<&Type> = variant.fields.iter().map(|field| &field.ty).collect();
        let (members, names): (Vec<_>, Vec<_>) =
            variant.fields.iter().enumerate().map(|(i, field)| member(i, field)).unzip();
        let places: Vec<syn::Member> = (1..=variant.fields.len()).map(Into::into).collect();
        let pattern = quote!(Self::#ident { #(#members: #bindings),* });
        let offsets: Vec<TokenStream> = places
            .iter()
            .map(|place| quote!(::std::mem::offset_of!(#layout #type_generics, #place)))
            .collect();
        let older = &said[number].names[1..];
        let of_gone = said[number].of_gone();
        let of_variant = match older {
            [] => of_gone,
            older => quote!(definition.variant_was(&[#(#older),*]); #of_gone),
        };
        let of_fields: Vec<TokenStream> = said_of(&variant.fields)?.iter().map(Said::of_field).collect();
        describes.push(quote! {
            definition.variant(#text, Self::__caliburn_tag(#text));
            #of_variant
            #(definition.variant_field::<#of>(#names, #offsets); #of_fields)*
        });
        stores.push(quote! {
            #pattern => { #(<#of as ::caliburn::typed::Recoverable>::store(#bindings, to.byte_add(#offsets).cast());)* }
        });
        moves
            .push(quote!(#pattern => { #(<#of as ::caliburn::typed::Recoverable>::moved(#bindings, by);)* }));
        let at: Vec<TokenStream> = offsets.iter().map(|offset| quote!(to.byte_add(#offset).cast())).collect();
        let Said { names, gone, .. } = &said[number];
        let loads = loads(&format!("{base}::{text}"), &format!("_{number}"), &variant.fields, &at, gone)?;
        let (takes, makes) = (loads.takes, loads.makes);
        defaults.extend(loads.defaults);
        made.push(quote! {
            #(#names)|* => {
                #takes
                unsafe {
                    to.cast::<#tag>().write(Self::__caliburn_tag(#text) as #tag);
                    #makes
                }
            }
        });
        frees.push(quote!(#pattern => { #(<#of as ::caliburn::typed::Recoverable>::free(#bindings, tx);)* }));
    }
    let tags = tags(data, tag);
    let defaults = defaults_of(input, &defaults);
    let init_self = init_of_self(input);
    let guards = guards_of_enum(input, data);
    let not_drop = not_drop(input, &generics);
    Ok(quote! {
        const _: () = {
        #(#layouts)*
        #[automatically_derived]
        impl #impl_generics #name #type_generics #bounds {
            #tags
        }
        #[automatically_derived]
        // SAFETY: its layout is fixed, its fields may live in a store, and each is told what the whole is told.
        unsafe impl #impl_generics ::caliburn::typed::Recoverable for #name #type_generics #bounds {
            type Pointers = #pointers;
            type Borrowed = Self;
            const PADDED: bool = ::std::mem::size_of::<Self>() > ::std::mem::size_of::<#tag>();

            fn describe(types: &mut ::caliburn::typed::Types) -> ::std::string::String {
                let parameters = #parameters;
                types.define::<Self>(#what, #base, &parameters, |definition| { #(#describes)* })
            }

            #[allow(unused_variables, unused_unsafe)]
            unsafe fn store(from: *const Self, to: *mut Self) {
                unsafe {
                    to.cast::<#tag>().write(from.cast::<#tag>().read());
                    match &*from { #(#stores)* }
                }
            }

            #[allow(unused_variables, unused_unsafe)]
            unsafe fn moved(this: *mut Self, by: isize) {
                unsafe { match &mut *this { #(#moves)* } }
            }

            #[allow(unused_variables, unused_unsafe)]
            unsafe fn free(this: *mut Self, tx: ::caliburn::typed::Tx<'_>) {
                unsafe { match &mut *this { #(#frees)* } }
            }

            #[allow(unused_variables, unused_mut, unused_unsafe)]
            unsafe fn load(
                from: ::caliburn::typed::Datum, to: *mut Self, loader: &::caliburn::typed::Loader<'_, '_>
            ) {
                let (variant, mut fields) = ::caliburn::typed::Loader::variant(loader, from);
                match ::std::string::String::as_str(&variant) {
                    #(#made)*
                    other => ::caliburn::typed::Loader::no_variant(loader, #base, other),
                }
            }
        }
        };
        #defaults
        #init_self
        #guards
        #not_drop
    })
}

/// The name of the struct that is laid out as a variant is.
fn layout_of(variant: &syn::Variant) -> Ident {
    format_ident!("__Caliburn{}", variant.ident)
}

/// The tags, as the language counts them.
fn tags(data: &DataEnum, tag: &TokenStream) -> TokenStream {
    // An item: it sees nothing of the function that it stands in.
    let constant = |value: TokenStream| quote!({ const __CALIBURN_TAG: #tag = #value; __CALIBURN_TAG });
    let mut from = constant(quote!(0));
    let (mut behind, mut arms) = (0usize, Vec::new());
    for variant in &data.variants {
        if let Some((_, value)) = &variant.discriminant {
            (from, behind) = (constant(quote!(#value)), 0);
        }
        let text = variant.ident.to_string();
        arms.push(
            quote!(#text => (#from as ::std::primitive::u64).wrapping_add(#behind as ::std::primitive::u64),),
        );
        behind += 1;
    }
    quote! {
        #[doc(hidden)]
        #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss)]
        fn __caliburn_tag(variant: &::std::primitive::str) -> ::std::primitive::u64 {
            match variant {
                #(#arms)*
                _ => ::std::unreachable!(),
            }
        }
    }
}

fn guards_of_enum(input: &DeriveInput, data: &DataEnum) -> TokenStream {
    let (name, visibility) = (&input.ident, &input.vis);
    let guards = format_ident!("{}Fields", name);
    let generics = bounded(&input.generics);
    let (impl_generics, type_generics, bounds) = generics.split_for_impl();
    let with_lifetimes = guard_generics(&input.generics);
    let (_, guard_type, guard_bounds) = with_lifetimes.split_for_impl();
    let text = format!("Guards of the fields of a [`{name}`]'s variants.");
    let mut variants = Vec::new();
    let mut arms = Vec::new();
    for variant in &data.variants {
        let ident = &variant.ident;
        let bindings: Vec<Ident> = (0..variant.fields.len()).map(|i| format_ident!("__field{i}")).collect();
        let members: Vec<syn::Member> =
            variant.fields.iter().enumerate().map(|(i, field)| member(i, field).0).collect();
        let kinds = variant.fields.iter().map(|field| {
            let of = &field.ty;
            let kind = quote!(::caliburn::typed::Mut<'a, 'id, #of>);
            match &field.ident {
                Some(name) => quote!(#[allow(missing_docs)] #name: #kind),
                None => quote!(#[allow(missing_docs)] #kind),
            }
        });
        let text = format!("The variant `{ident}`.");
        variants.push(match &variant.fields {
            Fields::Named(_) => quote!(#[doc = #text] #ident { #(#kinds),* }),
            Fields::Unnamed(_) => quote!(#[doc = #text] #ident(#(#kinds),*)),
            Fields::Unit => quote!(#[doc = #text] #ident),
        });
        arms.push(quote! {
            // SAFETY: the fields are apart, each in the value that the guard has alone.
            #name::#ident { #(#members: #bindings),* } => unsafe {
                #guards::#ident { #(#members: ::caliburn::typed::Mut::new(#bindings, tx)),* }
            },
        });
    }
    let hold = unused(&input.generics);
    quote! {
        #[doc = #text]
        #[allow(dead_code, deprecated, non_camel_case_types, non_snake_case)]
        #visibility enum #guards #with_lifetimes #guard_bounds {
            #(#variants,)*
            #[doc(hidden)]
            __Holds(::std::convert::Infallible, #hold),
        }
        #[automatically_derived]
        impl #impl_generics ::caliburn::typed::Fields for #name #type_generics #bounds {
            type Of<'a, 'id> = #guards #guard_type;

            #[allow(unused_variables, unused_unsafe)]
            fn of<'a, 'id>(
                value: ::caliburn::typed::Mut<'a, 'id, Self>
            ) -> <Self as ::caliburn::typed::Fields>::Of<'a, 'id> {
                let (at, tx) = (::caliburn::typed::Mut::as_ptr(&value), ::caliburn::typed::Mut::tx(&value));
                // SAFETY: the guard has the value alone.
                match unsafe { &mut *at } { #(#arms)* }
            }
        }
    }
}

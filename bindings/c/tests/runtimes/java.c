/* What Caught.java calls. */
#include <jni.h>

#include "caught.h"

JNIEXPORT void JNICALL Java_Caught_open(JNIEnv *env, jclass class, jstring directory, jint kind)
{
    (void)class;
    const char *dir = (*env)->GetStringUTFChars(env, directory, NULL);
    caught_open(dir, kind);
    (*env)->ReleaseStringUTFChars(env, directory, dir);
}

JNIEXPORT void JNICALL Java_Caught_begin(JNIEnv *env, jclass class, jint turn)
{
    (void)env, (void)class;
    caught_begin(turn);
}

JNIEXPORT void JNICALL Java_Caught_end(JNIEnv *env, jclass class, jint turn)
{
    (void)env, (void)class;
    caught_end(turn);
}

JNIEXPORT void JNICALL Java_Caught_close(JNIEnv *env, jclass class)
{
    (void)env, (void)class;
    caught_close();
}
